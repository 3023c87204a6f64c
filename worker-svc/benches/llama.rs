//! Speed of the `llama` engine on SmolLM2-135M: prefill of 512 tokens, and the step that decodes
//! the 513th, of one sequence and of eight. `ARMATURE_MODEL` names the file; without it the usual
//! place is looked at. `llama_cpp.py` beside this measures llama.cpp on the same file.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::time::Duration;

use armature_worker::domain::ids::{BlockId, SeqId};
use armature_worker::engine::llama::{Kernels, LlamaEngine, LoadOptions, WeightStore, load};
use armature_worker::kv_memory::KvMemory;
use armature_worker::ports::{Chunk, Engine, StepWatch};
use criterion::{Criterion, Throughput};

const PROMPT: usize = 512;
const BLOCK_SIZE: usize = 16;
const BATCH: usize = 8;
/// Blocks of a sequence: the prompt, and the token after it.
const BLOCKS: usize = PROMPT / BLOCK_SIZE + 1;

struct AllLive;

impl StepWatch for AllLive {
    fn layer_done(&mut self, _layer: usize) {}
    fn is_live(&self, _seq: SeqId) -> bool {
        true
    }
}

fn model() -> Option<PathBuf> {
    let named = std::env::var_os("ARMATURE_MODEL").map(PathBuf::from);
    let usual = std::env::var_os("HOME")
        .map(|home| PathBuf::from(home).join(".cache/armature/models/smollm2-135m-instruct-q4_1.gguf"));
    named.or(usual).filter(|path| path.is_file())
}

fn prompt(sequence: usize) -> Vec<u32> {
    (0..PROMPT).map(|i| 17 + ((i * 7919 + sequence * 104_729) % 40_000) as u32).collect()
}

fn measure(criterion: &mut Criterion, engine: &mut LlamaEngine) {
    let kv = KvMemory::new(engine.spec().kv, BLOCKS * BATCH).expect("a pool");
    let mut run = |chunks: &[Chunk<'_>]| engine.forward(chunks, &kv, &mut AllLive).expect("a pass");
    let block = |sequence: usize, block: usize| BlockId((sequence * BLOCKS + block) as u32);
    let tables: Vec<Vec<BlockId>> =
        (0..BATCH).map(|sequence| (0..BLOCKS).map(|b| block(sequence, b)).collect()).collect();
    let chunk = |sequence: usize, tokens, start| {
        let seq = SeqId(sequence as u64);
        Chunk { seq, tokens, start, blocks: &tables[sequence], wants_logits: true }
    };
    let prompts: Vec<Vec<u32>> = (0..BATCH).map(prompt).collect();
    for (sequence, prompt) in prompts.iter().enumerate() {
        run(&[chunk(sequence, prompt, 0)]);
    }
    let mut group = criterion.benchmark_group("llama");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(PROMPT as u64));
    group.bench_function("prefill_512", |bench| bench.iter(|| run(&[chunk(0, &prompts[0], 0)])));
    for batch in [1, BATCH] {
        let chunks: Vec<Chunk<'_>> = (0..batch).map(|s| chunk(s, &[42], PROMPT)).collect();
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(format!("decode_batch_{batch}"), |bench| bench.iter(|| run(&chunks)));
    }
    group.finish();
}

fn main() {
    let Some(path) = model() else {
        println!("SKIPPED: no SmolLM2 file; set ARMATURE_MODEL to its path");
        return;
    };
    let cache_dir = path.parent().map(|dir| dir.join("weights"));
    let options = LoadOptions { threads: 1, cache_dir, block_size: BLOCK_SIZE };
    let mut criterion = Criterion::default().configure_from_args();
    // The fastest kernels, or those that `ARMATURE_KERNELS` names.
    let wanted = std::env::var("ARMATURE_KERNELS").ok();
    let named = |kernels: &Kernels| wanted.as_deref() == Some(kernels.name());
    let kernels = Kernels::available().into_iter().find(named).unwrap_or_else(Kernels::detect);
    println!("kernels: {}", kernels.name());
    let engine = load(&path, &options, &WeightStore::new()).expect("the model loads");
    measure(&mut criterion, &mut engine.with_kernels(kernels));
    criterion.final_summary();
}
