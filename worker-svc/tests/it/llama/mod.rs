//! The `llama` engine: on tiny random models, and on SmolLM2 where its file is on this machine.

mod caching;
mod correctness;
mod invariance;
mod malformed;
mod passes;
mod recorded;
mod reference;
mod tokens;

use std::path::PathBuf;

use armature_tiny_gguf::Spec;
use armature_worker::domain::ids::{BlockId, SeqId};
use armature_worker::engine::llama::{LlamaEngine, LoadError, LoadOptions, WeightStore, load};
use armature_worker::kv_memory::KvMemory;
use armature_worker::ports::{Chunk, Engine, StepOutput, StepWatch};

/// A watch for passes that nobody cancels.
pub(crate) struct AllLive;

impl StepWatch for AllLive {
    fn layer_done(&mut self, _layer: usize) {}
    fn is_live(&self, _seq: SeqId) -> bool {
        true
    }
}

/// Loads the bytes of a model file, without a cache.
pub(crate) fn load_bytes(bytes: &[u8], threads: usize, block_size: usize) -> Result<LlamaEngine, LoadError> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), bytes).expect("written");
    let options = LoadOptions { threads, cache_dir: None, block_size };
    load(file.path(), &options, &WeightStore::new())
}

/// Loads a tiny model.
pub(crate) fn tiny(spec: &Spec, threads: usize, block_size: usize) -> LlamaEngine {
    load_bytes(&armature_tiny_gguf::bytes(spec), threads, block_size).expect("a tiny model loads")
}

/// Where SmolLM2-135M-Instruct Q4_1 is, if it is; says so when it is not.
pub(crate) fn smollm2() -> Option<PathBuf> {
    let named = std::env::var_os("ARMATURE_MODEL").map(PathBuf::from);
    let usual = std::env::var_os("HOME")
        .map(|home| PathBuf::from(home).join(".cache/armature/models/smollm2-135m-instruct-q4_1.gguf"));
    let found = named.or(usual).filter(|path| path.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: no SmolLM2 file; set ARMATURE_MODEL to its path");
    }
    found
}

/// Loads SmolLM2, its weights cached beside the model file.
pub(crate) fn load_smollm2(path: &std::path::Path, threads: usize) -> LlamaEngine {
    let cache_dir = path.parent().map(|dir| dir.join("weights"));
    load(path, &LoadOptions { threads, cache_dir, block_size: 16 }, &WeightStore::new())
        .expect("SmolLM2 loads")
}

/// A pool for `blocks` blocks of an engine, poisoned, so that reading before writing shows.
pub(crate) fn pool(engine: &LlamaEngine, blocks: usize) -> KvMemory {
    let kv = KvMemory::new(engine.spec().kv, blocks).expect("a pool");
    (0..blocks).for_each(|block| kv.poison(BlockId(block as u32)));
    kv
}

/// Blocks `first..` enough for `tokens` tokens.
pub(crate) fn blocks(engine: &LlamaEngine, first: usize, tokens: usize) -> Vec<BlockId> {
    let count = tokens.div_ceil(engine.spec().kv.block_size);
    (first..first + count).map(|block| BlockId(block as u32)).collect()
}

/// Runs one pass that wants logits of every chunk.
pub(crate) fn pass(
    engine: &mut LlamaEngine,
    kv: &KvMemory,
    chunks: &[(&[u32], usize, &[BlockId])],
) -> Vec<Vec<f32>> {
    let chunks: Vec<Chunk<'_>> = chunks
        .iter()
        .enumerate()
        .map(|(i, (tokens, start, blocks))| Chunk {
            seq: SeqId(i as u64),
            tokens,
            start: *start,
            blocks,
            wants_logits: true,
        })
        .collect();
    let StepOutput { logits, .. } = engine.forward(&chunks, kv, &mut AllLive).expect("a pass");
    logits.into_iter().map(|l| l.expect("wanted")).collect()
}

/// Logits after every token of `tokens`, computed one by one in a pool of its own.
pub(crate) fn teacher_forced(engine: &mut LlamaEngine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let blocks = blocks(engine, 0, tokens.len());
    let kv = pool(engine, blocks.len());
    (0..tokens.len()).map(|i| pass(engine, &kv, &[(&tokens[i..=i], i, &blocks)]).remove(0)).collect()
}

/// Bit patterns, for comparing exactly.
pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}
