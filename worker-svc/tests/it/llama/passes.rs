//! What a pass tells its watch, what it drops, and what it refuses.

use std::cell::Cell;

use armature_tiny_gguf::Spec;
use armature_worker::domain::ids::{BlockId, SeqId};
use armature_worker::ports::{Chunk, Engine, EngineError, StepWatch};

use super::{AllLive, bits, blocks, pass, pool, tiny};

/// Lets one sequence die once a layer is done.
struct DiesAfter {
    layer: usize,
    seq: SeqId,
    done: Cell<Vec<usize>>,
}

impl StepWatch for DiesAfter {
    fn layer_done(&mut self, layer: usize) {
        self.done.get_mut().push(layer);
    }
    fn is_live(&self, seq: SeqId) -> bool {
        let done = self.done.take();
        let live = seq != self.seq || done.len() <= self.layer;
        self.done.set(done);
        live
    }
}

#[test]
fn a_sequence_that_dies_is_dropped_and_the_others_do_not_notice() {
    let spec = Spec { layers: 4, ..Spec::default() };
    let mut engine = tiny(&spec, 1, 4);
    let texts: [Vec<u32>; 3] = [(1..8).collect(), (20..32).collect(), (40..45).collect()];
    let tables: Vec<_> = (0..3).map(|i| blocks(&engine, 4 * i, 12)).collect();
    let kv = pool(&engine, 12);
    let alone: Vec<_> = texts
        .iter()
        .zip(&tables)
        .map(|(t, table)| pass(&mut engine, &kv, &[(t, 0, table)]).remove(0))
        .collect();
    for layer in 0..4 {
        let kv = pool(&engine, 12);
        let chunk = |i: usize| {
            let (tokens, blocks) = (texts[i].as_slice(), tables[i].as_slice());
            Chunk { seq: SeqId(i as u64), tokens, start: 0, blocks, wants_logits: true }
        };
        let mut watch = DiesAfter { layer, seq: SeqId(1), done: Cell::default() };
        let output = engine.forward(&[chunk(0), chunk(1), chunk(2)], &kv, &mut watch).expect("a pass");
        assert_eq!(watch.done.take(), [0, 1, 2, 3], "every layer is told, in order");
        assert!(output.logits[1].is_none(), "nothing for the dead");
        for i in [0, 2] {
            assert_eq!(bits(output.logits[i].as_ref().expect("alive")), bits(&alone[i]));
        }
        // One that dies while the last layer's attention runs has its KV complete.
        let dead = if layer < 3 { 0 } else { texts[1].len() };
        assert_eq!(output.computed_tokens as usize, texts[0].len() + dead + texts[2].len());
    }
}

#[test]
fn a_pass_whose_sequences_all_die_ends_early() {
    let mut engine = tiny(&Spec { layers: 4, ..Spec::default() }, 1, 4);
    let table = blocks(&engine, 0, 3);
    let kv = pool(&engine, 1);
    let mut watch = DiesAfter { layer: 1, seq: SeqId(0), done: Cell::default() };
    let chunk = Chunk { seq: SeqId(0), tokens: &[1, 2, 3], start: 0, blocks: &table, wants_logits: true };
    let output = engine.forward(&[chunk], &kv, &mut watch).expect("a pass");
    assert_eq!((watch.done.take().len(), output.computed_tokens), (2, 0));
    assert!(output.logits[0].is_none());
}

#[test]
fn what_cannot_be_addressed_is_refused_before_anything_is_written() {
    let mut engine = tiny(&Spec::default(), 1, 4);
    let kv = pool(&engine, 2);
    let vocab_size = engine.spec().vocab_size;
    let (good, outside) = ([BlockId(0), BlockId(1)], [BlockId(0), BlockId(2)]);
    let mut run = |tokens: &[u32], start: usize, blocks: &[BlockId]| {
        let chunk = Chunk { seq: SeqId(9), tokens, start, blocks, wants_logits: true };
        engine.forward(&[chunk], &kv, &mut AllLive).map(drop)
    };
    let token = vocab_size as u32;
    assert_eq!(run(&[1, token], 0, &good), Err(EngineError::TokenOutOfRange { token, vocab_size }));
    assert!(matches!(run(&[], 0, &good), Err(EngineError::Failed(_))), "no tokens");
    assert!(matches!(run(&[1], 8, &good), Err(EngineError::Failed(_))), "past the blocks");
    assert!(matches!(run(&[1], usize::MAX, &good), Err(EngineError::Failed(_))), "past the context");
    assert!(matches!(run(&[1], 0, &outside), Err(EngineError::Failed(_))), "outside the pool");
    let first = kv.bytes(BlockId(0), 0..kv.geometry().block_bytes());
    assert!(first.iter().all(|byte| *byte == 0xff), "nothing was written");
}

#[test]
fn keys_that_were_never_written_fail_the_pass_instead_of_passing_for_an_answer() {
    let mut engine = tiny(&Spec::default(), 1, 4);
    let table = blocks(&engine, 0, 6);
    let kv = pool(&engine, 2);
    let chunk = Chunk { seq: SeqId(0), tokens: &[7], start: 5, blocks: &table, wants_logits: true };
    assert!(matches!(engine.forward(&[chunk], &kv, &mut AllLive), Err(EngineError::Failed(_))));
}
