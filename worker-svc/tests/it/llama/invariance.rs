//! Batch invariance: KV and logits of a token are bitwise the same however it is computed.

use std::sync::{LazyLock, Mutex};

use armature_tiny_gguf::Spec;
use armature_worker::domain::ids::{BlockId, SeqId};
use armature_worker::engine::llama::{Kernels, LlamaEngine};
use armature_worker::kv_memory::{KvMemory, Part};
use armature_worker::ports::{Chunk, Engine};
use proptest::prelude::*;
use proptest::sample::Index;

use super::{AllLive, bits, blocks, pass, pool, teacher_forced, tiny};

const BLOCK_SIZE: usize = 4;
const POOL: usize = 64;

/// One engine per thread count and instruction set, loaded once.
static ENGINES: LazyLock<Mutex<Vec<LlamaEngine>>> = LazyLock::new(|| {
    let spec = Spec { seed: 3, ..Spec::default() };
    let threads = [1, 2, 3].map(|threads| tiny(&spec, threads, BLOCK_SIZE));
    let kernels = Kernels::available().into_iter().map(|k| tiny(&spec, 1, BLOCK_SIZE).with_kernels(k));
    Mutex::new(threads.into_iter().chain(kernels).collect())
});

/// A sequence: its tokens, and where it is cut into chunks.
#[derive(Debug, Clone)]
struct Sequence {
    tokens: Vec<u32>,
    cuts: Vec<usize>,
}

fn sequence() -> impl Strategy<Value = Sequence> {
    (prop::collection::vec(0..300u32, 1..40), prop::collection::vec(any::<Index>(), 0..4)).prop_map(
        |(tokens, cuts)| {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(tokens.len())).collect();
            cuts.extend([0, tokens.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            Sequence { tokens, cuts }
        },
    )
}

/// Keys and values of a sequence, position after position, all layers.
fn kv_bits(kv: &KvMemory, blocks: &[BlockId], tokens: usize) -> Vec<u32> {
    let geometry = kv.geometry();
    let mut all = vec![];
    for position in 0..tokens {
        for layer in 0..geometry.layers {
            for part in [Part::K, Part::V] {
                let slot = position % geometry.block_size;
                let part = kv.part(blocks[position / geometry.block_size], layer, part);
                all.extend(part[slot * geometry.row()..][..geometry.row()].iter().map(|v| v.to_bits()));
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Sequences cut anywhere, in passes that mix them anyhow, in blocks that lie anywhere, with any
    /// threads and kernels: each logit and each key and value is that of the sequence alone, token
    /// by token.
    #[test]
    fn any_schedule_gives_the_bits_of_a_sequence_alone(
        sequences in prop::collection::vec(sequence(), 1..5),
        picks in prop::collection::vec(prop::collection::vec(any::<bool>(), 5), 0..8),
        physical in Just((0..POOL as u32).collect::<Vec<_>>()).prop_shuffle(),
        engine in any::<Index>(),
    ) {
        let mut engines = ENGINES.lock().expect("no test has panicked with it");
        let alone: Vec<_> = sequences.iter().map(|s| teacher_forced(&mut engines[0], &s.tokens)).collect();
        let index = engine.index(engines.len());
        let engine = &mut engines[index];
        let kv = pool(engine, POOL);
        let mut free = physical.into_iter().map(BlockId);
        let tables: Vec<Vec<BlockId>> = sequences
            .iter()
            .map(|s| free.by_ref().take(s.tokens.len().div_ceil(BLOCK_SIZE)).collect())
            .collect();
        let mut next = vec![0; sequences.len()];
        // Passes over some sequences as drawn, then over all that are left.
        for pick in picks.iter().cloned().chain(std::iter::repeat(vec![true; 5])) {
            let unfinished = |s: usize, next: &[usize]| next[s] + 1 < sequences[s].cuts.len();
            if !(0..sequences.len()).any(|s| unfinished(s, &next)) {
                break;
            }
            let run: Vec<usize> = (0..sequences.len()).filter(|s| pick[*s] && unfinished(*s, &next)).collect();
            let chunks: Vec<_> = run
                .iter()
                .map(|s| {
                    let (from, to) = (sequences[*s].cuts[next[*s]], sequences[*s].cuts[next[*s] + 1]);
                    (&sequences[*s].tokens[from..to], from, tables[*s].as_slice())
                })
                .collect();
            for (logits, (s, (tokens, from, _))) in pass(engine, &kv, &chunks).iter().zip(run.iter().zip(&chunks)) {
                prop_assert_eq!(bits(logits), bits(&alone[*s][from + tokens.len() - 1]));
            }
            run.iter().for_each(|s| next[*s] += 1);
        }
        for (s, table) in sequences.iter().zip(&tables) {
            let engine = &mut engines[0];
            let own = blocks(engine, 0, s.tokens.len());
            let other = pool(engine, own.len());
            pass(engine, &other, &[(&s.tokens, 0, &own)]);
            let len = s.tokens.len();
            prop_assert_eq!(kv_bits(&kv, table, len), kv_bits(&other, &own, len));
        }
    }

    /// A prefix computed in one pool, copied as bytes into other blocks of another, serves as if it
    /// had been computed there.
    #[test]
    fn a_copied_prefix_gives_the_bits_of_a_computed_one(
        tokens in prop::collection::vec(0..300u32, 9..40),
        kept in any::<Index>(),
    ) {
        let mut engines = ENGINES.lock().expect("no test has panicked with it");
        let engine = &mut engines[0];
        let table = blocks(engine, 0, tokens.len());
        let source = pool(engine, table.len());
        let whole = pass(engine, &source, &[(&tokens, 0, &table)]).remove(0);
        let target = pool(engine, POOL);
        let elsewhere: Vec<BlockId> = table.iter().map(|b| BlockId(POOL as u32 - 1 - 2 * b.0)).collect();
        let kept = 1 + kept.index((tokens.len() - 1) / BLOCK_SIZE);
        let bytes = 0..target.geometry().block_bytes();
        for (from, to) in table.iter().zip(&elsewhere).take(kept) {
            target.bytes_mut(*to, bytes.clone()).copy_from_slice(source.bytes(*from, bytes.clone()));
        }
        let start = kept * BLOCK_SIZE;
        let suffix = pass(engine, &target, &[(&tokens[start..], start, &elsewhere)]).remove(0);
        prop_assert_eq!(bits(&suffix), bits(&whole));
    }
}

#[test]
fn a_chunk_without_logits_leaves_the_same_kv_and_returns_none() {
    let mut engine = tiny(&Spec::default(), 1, BLOCK_SIZE);
    let tokens: Vec<u32> = (0..10).collect();
    let table = blocks(&engine, 0, tokens.len());
    let (with, without) = (pool(&engine, table.len()), pool(&engine, table.len()));
    pass(&mut engine, &with, &[(&tokens, 0, &table)]);
    let chunk = Chunk { seq: SeqId(1), tokens: &tokens, start: 0, blocks: &table, wants_logits: false };
    let output = engine.forward(&[chunk], &without, &mut AllLive).expect("a pass");
    assert!(output.logits[0].is_none() && output.computed_tokens == 10);
    assert_eq!(kv_bits(&with, &table, 10), kv_bits(&without, &table, 10));
}
