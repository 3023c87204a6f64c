use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::domain::ids::{BlockId, SeqId};
use crate::domain::sampling::{Draw, History, SamplingParams, Scratch, sample};
use crate::kv_memory::Part;

/// Keeps every chunk and notes the layers that were done.
#[derive(Default)]
struct Watch {
    done: Vec<usize>,
    /// Sequences that nobody wants once this many layers are done.
    dropped: Vec<(SeqId, usize)>,
}

impl StepWatch for Watch {
    fn layer_done(&mut self, layer: usize) {
        self.done.push(layer);
    }
    fn is_live(&self, seq: SeqId) -> bool {
        !self.dropped.iter().any(|(dropped, after)| *dropped == seq && self.done.len() >= *after)
    }
}

const BLOCK_SIZE: usize = 4;
const POOL_BLOCKS: usize = 64;

fn config() -> SimConfig {
    SimConfig { layers: 3, kv_heads: 2, head_dim: 3, block_size: BLOCK_SIZE, ..SimConfig::default() }
}

fn engine_with(config: SimConfig) -> SimEngine {
    SimEngine::new(config, Box::new(|_| {})).unwrap()
}

fn engine() -> SimEngine {
    engine_with(config())
}

fn pool() -> KvMemory {
    KvMemory::new(config().geometry(), POOL_BLOCKS).unwrap()
}

/// `count` blocks from `first` on, in an order that is not that of the pool.
fn table(first: u32, count: u32) -> Vec<BlockId> {
    (first..first + count).rev().map(BlockId).collect()
}

fn chunk<'a>(seq: u64, tokens: &'a [u32], start: usize, blocks: &'a [BlockId]) -> Chunk<'a> {
    Chunk { seq: SeqId(seq), tokens, start, blocks, wants_logits: true }
}

fn forward(engine: &mut SimEngine, kv: &KvMemory, chunks: &[Chunk<'_>]) -> Result<StepOutput, EngineError> {
    engine.forward(chunks, kv, &mut Watch::default())
}

/// Logits after `tokens[start..]` in one pass.
fn logits(kv: &KvMemory, tokens: &[u32], start: usize, blocks: &[BlockId]) -> Result<Vec<f32>, EngineError> {
    let output = forward(&mut engine(), kv, &[chunk(0, &tokens[start..], start, blocks)])?;
    Ok(output.logits[0].clone().unwrap())
}

/// Bits of the KV of the first `tokens` positions, in sequence order.
fn kv_bits(kv: &KvMemory, blocks: &[BlockId], tokens: usize) -> Vec<u32> {
    let row = kv.geometry().row();
    let mut bits = Vec::new();
    for position in 0..tokens {
        for layer in 0..kv.geometry().layers {
            for part in [Part::K, Part::V] {
                let values = kv.part(blocks[position / BLOCK_SIZE], layer, part);
                let slot = position % BLOCK_SIZE;
                bits.extend(values[slot * row..(slot + 1) * row].iter().map(|value| value.to_bits()));
            }
        }
    }
    bits
}

fn tokens(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..FIRST_RESERVED, count)
}

proptest! {
    #[test]
    fn a_sequence_in_a_batch_equals_the_same_alone(sequences in prop::collection::vec(tokens(1..40), 1..6)) {
        let (together, alone) = (pool(), pool());
        let tables: Vec<_> = (0..sequences.len() as u32).map(|i| table(i * 10, 10)).collect();
        let chunks: Vec<_> = sequences
            .iter()
            .zip(&tables)
            .zip(0u64..)
            .map(|((tokens, table), seq)| chunk(seq, tokens, 0, table))
            .collect();
        let output = forward(&mut engine(), &together, &chunks).unwrap();
        prop_assert_eq!(output.computed_tokens, sequences.iter().map(|s| s.len() as u64).sum::<u64>());
        for ((tokens, table), batched) in sequences.iter().zip(&tables).zip(output.logits) {
            prop_assert_eq!(batched.unwrap(), logits(&alone, tokens, 0, table).unwrap());
            prop_assert_eq!(kv_bits(&together, table, tokens.len()), kv_bits(&alone, table, tokens.len()));
        }
    }

    #[test]
    fn chunks_equal_one_shot(tokens in tokens(1..80), sizes in prop::collection::vec(1usize..20, 1..20)) {
        let (cut, whole) = (pool(), pool());
        let (blocks, other_blocks) = (table(0, 20), table(30, 20));
        let expected = logits(&whole, &tokens, 0, &other_blocks).unwrap();
        let mut start = 0;
        let mut last = None;
        for size in sizes.into_iter().cycle() {
            if start == tokens.len() {
                break;
            }
            let end = (start + size).min(tokens.len());
            last = Some(logits(&cut, &tokens[..end], start, &blocks).unwrap());
            start = end;
        }
        prop_assert_eq!(last.unwrap(), expected);
        prop_assert_eq!(
            kv_bits(&cut, &blocks, tokens.len()), kv_bits(&whole, &other_blocks, tokens.len()));
    }

    #[test]
    fn copied_blocks_equal_the_original(tokens in tokens(2..80), cut in 1usize..79) {
        let cut = cut.min(tokens.len() - 1);
        let (source, target) = (pool(), pool());
        let (blocks, landed) = (table(0, 20), table(40, 20));
        let expected = logits(&source, &tokens, 0, &blocks).unwrap();
        for (from, to) in blocks.iter().zip(&landed).take(cut.div_ceil(BLOCK_SIZE)) {
            let whole = 0..source.geometry().block_bytes();
            target.bytes_mut(*to, whole.clone()).copy_from_slice(source.bytes(*from, whole));
        }
        prop_assert_eq!(logits(&target, &tokens, cut, &landed).unwrap(), expected);
    }

    #[test]
    fn any_flipped_bit_is_found_at_its_position(
        tokens in tokens(2..40), place: prop::sample::Index, offset: prop::sample::Index, bit in 0u32..32,
    ) {
        let (kv, blocks) = (pool(), table(0, 10));
        logits(&kv, &tokens, 0, &blocks).unwrap();
        let start = tokens.len() - 1;
        let position = place.index(start);
        let offset = offset.index(3 * 2 * 6);
        let (layer, part) = (offset / 12, if offset / 6 % 2 == 0 { Part::K } else { Part::V });
        let element =
            &mut kv.row_mut(blocks[position / BLOCK_SIZE], layer, part, position % BLOCK_SIZE)[offset % 6];
        *element = f32::from_bits(element.to_bits() ^ 1 << bit);
        let found = logits(&kv, &tokens, start, &blocks);
        prop_assert!(
            matches!(&found, Err(EngineError::CorruptKv { position: p, .. }) if *p == position),
            "{found:?} instead of position {position}"
        );
    }

    /// A block of a sequence with another past is found where it begins, wherever both have equal tokens.
    #[test]
    fn a_block_of_another_past_is_found_where_it_begins(tokens in tokens(13..40), block in 1usize..3) {
        let kv = pool();
        let (blocks, others) = (table(0, 10), table(20, 10));
        let mut other_tokens = tokens.clone();
        other_tokens[0] = (tokens[0] + 1) % FIRST_RESERVED;
        logits(&kv, &tokens, 0, &blocks).unwrap();
        logits(&kv, &other_tokens, 0, &others).unwrap();
        let mut mixed = blocks.clone();
        mixed[block] = others[block];
        let found = logits(&kv, &tokens, 12, &mixed);
        prop_assert!(
            matches!(&found, Err(EngineError::CorruptKv { position, .. }) if *position == block * BLOCK_SIZE),
            "{found:?}"
        );
    }
}

#[test]
fn missing_poisoned_and_misplaced_blocks_are_found() {
    let tokens: Vec<u32> = (0..16).collect();
    let position_of = |spoil: fn(&KvMemory, &mut Vec<BlockId>)| {
        let (kv, mut blocks) = (pool(), table(0, 4));
        logits(&kv, &tokens, 0, &blocks).unwrap();
        spoil(&kv, &mut blocks);
        match logits(&kv, &tokens, 15, &blocks) {
            Err(EngineError::CorruptKv { position, .. }) => position,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(position_of(|_, blocks| blocks[1] = BlockId(60)), 4, "never written");
    assert_eq!(position_of(|kv, blocks| kv.poison(blocks[2])), 8, "poisoned");
    assert_eq!(position_of(|_, blocks| blocks.swap(1, 2)), 4, "out of order");
    assert_eq!(position_of(|_, blocks| blocks[3] = blocks[0]), 12, "used twice");
}

#[test]
fn last_verifies_the_last_position_only() {
    let mut engine = engine_with(SimConfig { verify: Verify::Last, ..config() });
    let tokens: Vec<u32> = (0..12).collect();
    let (kv, blocks) = (pool(), table(0, 3));
    let mut next = |kv: &KvMemory| forward(&mut engine, kv, &[chunk(0, &tokens[8..], 8, &blocks)]);
    logits(&kv, &tokens, 0, &blocks).unwrap();
    kv.poison(blocks[0]);
    next(&kv).unwrap();
    kv.row_mut(blocks[1], 2, Part::V, 3)[5] = 1.0;
    let detail = "layer 2 V does not belong to the chain hash in layer 0".to_owned();
    assert_eq!(next(&kv).unwrap_err(), EngineError::CorruptKv { position: 7, detail });
}

#[test]
fn a_dropped_chunk_leaves_between_layers_and_the_others_go_on() {
    let (kv, tables) = (pool(), [table(0, 1), table(10, 1)]);
    let chunks = [chunk(1, &[5, 6], 0, &tables[0]), chunk(2, &[5, 6, 7], 0, &tables[1])];
    let mut watch = Watch { dropped: vec![(SeqId(1), 1)], ..Watch::default() };
    let output = engine().forward(&chunks, &kv, &mut watch).unwrap();
    assert_eq!(watch.done, [0, 1, 2]);
    assert!(output.logits[0].is_none() && output.logits[1].is_some());
    assert_eq!(output.computed_tokens, 3);
    // What the dropped chunk left is no KV.
    assert_eq!(
        logits(&kv, &[5, 6, 7], 2, &tables[0]).unwrap_err(),
        EngineError::CorruptKv {
            position: 0,
            detail: "layer 1 K does not belong to the chain hash in layer 0".to_owned()
        }
    );
}

#[test]
fn time_is_spent_layer_by_layer_and_not_for_nobody() {
    let spent = Arc::new(Mutex::new(Vec::new()));
    let sleeper = {
        let spent = spent.clone();
        move |time| spent.lock().unwrap().push(time)
    };
    let config = SimConfig { prefill_ms: Polynomial::fixed(6.0), speedup: 2.0, ..config() };
    let mut engine = SimEngine::new(config, Box::new(sleeper)).unwrap();
    let (kv, blocks) = (pool(), table(0, 1));
    let chunks = [chunk(1, &[1, 2], 0, &blocks)];

    engine.forward(&chunks, &kv, &mut Watch::default()).unwrap();
    assert_eq!(*spent.lock().unwrap(), [Duration::from_millis(1); 3]);

    spent.lock().unwrap().clear();
    let mut watch = Watch { dropped: vec![(SeqId(1), 2)], ..Watch::default() };
    let output = engine.forward(&chunks, &kv, &mut watch).unwrap();
    assert_eq!((spent.lock().unwrap().len(), watch.done, output.computed_tokens), (2, vec![0, 1], 0));
}

#[test]
fn unusable_passes_are_typed_errors() {
    let (kv, blocks) = (pool(), table(0, 1));
    let mut engine = engine();
    let mut run = |tokens: &[u32], start| forward(&mut engine, &kv, &[chunk(0, tokens, start, &blocks)]);
    assert_eq!(
        run(&[1, FIRST_RESERVED], 0).unwrap_err(),
        EngineError::TokenOutOfRange { token: FIRST_RESERVED, vocab_size: 259 }
    );
    assert!(matches!(run(&[1; 5], 0), Err(EngineError::Failed(_))), "table too short");
    assert!(matches!(run(&[], 0), Err(EngineError::Failed(_))), "nothing to do");
    assert!(matches!(run(&[1], 1 << 40), Err(EngineError::Failed(_))), "beyond the context");
    let other = KvMemory::new(SimConfig::default().geometry(), 1).unwrap();
    assert!(matches!(logits(&other, &[1], 0, &blocks), Err(EngineError::Failed(_))), "pool of another shape");
}

/// Generates `count` tokens after a prompt, one step each.
fn generate(config: &SimConfig, prompt: &[u32], params: &SamplingParams, count: usize) -> Vec<u32> {
    let (kv, blocks) = (pool(), table(0, POOL_BLOCKS as u32));
    let mut engine = engine_with(config.clone());
    let mut scratch = Scratch::default();
    let mut generated: Vec<u32> = Vec::new();
    while generated.len() < count {
        let (start, input) = match generated.split_last() {
            None => (0, prompt),
            Some((last, before)) => (prompt.len() + before.len(), std::slice::from_ref(last)),
        };
        let output = forward(&mut engine, &kv, &[chunk(0, input, start, &blocks)]).unwrap();
        let draw = Draw { seed: 1, choice: 0, position: generated.len() as u32 };
        let history = History { prompt, generated: &generated };
        let sampled =
            sample(output.logits[0].as_ref().unwrap(), params, history, draw, &mut scratch).unwrap();
        generated.push(sampled.token);
        if engine.spec().eos_token_ids.contains(&sampled.token) {
            break;
        }
    }
    generated
}

#[test]
fn output_is_words_that_depend_on_the_prompt() {
    let text = |prompt: &[u8], params: &SamplingParams| {
        let prompt: Vec<u32> = prompt.iter().map(|byte| u32::from(*byte)).collect();
        let bytes = generate(&config(), &prompt, params, 120);
        String::from_utf8(bytes.iter().map(|token| u8::try_from(*token).unwrap()).collect()).unwrap()
    };
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        let hello = text(b"hello ", &params);
        assert!(hello.chars().all(|c| c == ' ' || c.is_ascii_lowercase()), "{hello}");
        assert!(hello.split(' ').all(|word| word.len() < 40) && hello.contains(' '), "{hello}");
        assert_ne!(hello, text(b"hallo ", &params));
        assert_eq!(hello, text(b"hello ", &params));
    }
}

#[test]
fn end_tokens_come_with_the_configured_probability() {
    let lengths = |eos_probability| -> Vec<usize> {
        let config = SimConfig { eos_probability, ..config() };
        (0..60).map(|i| generate(&config, &[i], &SamplingParams::default(), 100).len()).collect()
    };
    assert!(lengths(0.0).iter().all(|length| *length == 100));
    assert!(lengths(1.0).iter().all(|length| *length == 1));
    // Geometric with mean 10; of 60 of them the mean has a standard deviation of 1.2.
    let mean = lengths(0.1).iter().sum::<usize>() as f64 / 60.0;
    assert!((5.0..15.0).contains(&mean), "mean length {mean}");
}

#[test]
fn reserved_tokens_never_come_up() {
    let config = SimConfig { vocab_size: 512, ..config() };
    let hot = SamplingParams { temperature: 100.0, ..SamplingParams::default() };
    assert!(generate(&config, &[1], &hot, 200).iter().all(|token| *token < FIRST_RESERVED));
}

#[test]
fn the_tokenizer_maps_bytes_and_special_tokens() {
    let engine = engine_with(SimConfig { vocab_size: 300, ..config() });
    let tokenizer = tokenizers::Tokenizer::from_bytes(engine.tokenizer_json()).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), 300);
    let text = "<|im_start|>user\nHéllo  wörld €😀\u{0}\t<|im_end|>";
    let ids = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    let inner = &text["<|im_start|>".len()..text.len() - "<|im_end|>".len()];
    let expected: Vec<u32> =
        [IM_START].into_iter().chain(inner.bytes().map(u32::from)).chain([IM_END]).collect();
    assert_eq!(ids, expected);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), inner);
    for byte in 0..=255 {
        let letter = tokenizer.id_to_token(byte).unwrap();
        assert_eq!(tokenizer.token_to_id(&letter), Some(byte));
    }
}

#[test]
fn the_template_renders_chatml() {
    let template: serde_json::Value = serde_json::from_slice(&engine().template_json()).unwrap();
    assert_eq!(template["bos_token"], "<|im_start|>");
    assert_eq!(template["eos_token"], "<|im_end|>");
    assert_eq!(template["add_bos"], false);
    let environment = minijinja::Environment::new();
    let messages = [("system", "be brief"), ("user", "hi")];
    let messages: Vec<_> =
        messages.iter().map(|(role, content)| minijinja::context! { role, content }).collect();
    let rendered = environment
        .render_str(
            template["chat_template"].as_str().unwrap(),
            minijinja::context! { messages, add_generation_prompt => true },
        )
        .unwrap();
    assert_eq!(
        rendered,
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
}
