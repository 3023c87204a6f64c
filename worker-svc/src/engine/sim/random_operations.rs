//! Random lives of sequences over one pool: passes, cancelled chunks, forks, moves, frees, spoiled bits.
//!
//! The oracle knows only the tokens: logits are those of the tokens, or the pass fails at the first
//! spoiled position of the first chunk that reads one.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::domain::ids::{BlockId, SeqId};
use crate::kv_memory::Part;

const BLOCK_SIZE: usize = 4;
/// What all sequences hold at most, and room to move one.
const POOL_BLOCKS: u32 = ((MAX_SEQUENCES + 1) * MAX_TOKENS.div_ceil(BLOCK_SIZE)) as u32;
const MAX_SEQUENCES: usize = 6;
const MAX_TOKENS: usize = 60;

#[derive(Debug, Clone)]
enum Operation {
    /// One pass: for each sequence chosen by a bit, these tokens; those of the second bits are cancelled
    /// after a layer.
    Pass {
        chosen: u8,
        tokens: Vec<u32>,
        cancelled: u8,
        after: usize,
    },
    /// A new sequence that shares the first tokens of another.
    Fork {
        of: usize,
        at: prop::sample::Index,
    },
    /// The KV of a sequence to other blocks.
    Move {
        seq: usize,
    },
    Free {
        seq: usize,
    },
    /// One bit of the KV of one position.
    Spoil {
        seq: usize,
        position: prop::sample::Index,
        layer: usize,
        v: bool,
        element: usize,
        bit: u32,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let seq = 0..MAX_SEQUENCES;
    let tokens = prop::collection::vec(0..FIRST_RESERVED, 1..9);
    let spoil = (seq.clone(), any::<prop::sample::Index>(), 0usize..3, any::<bool>(), 0usize..6, 0u32..32);
    prop_oneof![
        12 => (any::<u8>(), tokens, prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0usize..3)
            .prop_map(|(chosen, tokens, cancelled, after)| Operation::Pass { chosen, tokens, cancelled, after }),
        3 => (seq.clone(), any::<prop::sample::Index>()).prop_map(|(of, at)| Operation::Fork { of, at }),
        2 => seq.clone().prop_map(|seq| Operation::Move { seq }),
        1 => seq.prop_map(|seq| Operation::Free { seq }),
        1 => spoil.prop_map(|(seq, position, layer, v, element, bit)| {
            Operation::Spoil { seq, position, layer, v, element, bit }
        }),
    ]
}

#[derive(Debug, Clone, Default)]
struct Sequence {
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
}

struct Cancel {
    bits: u8,
    after: usize,
    done: usize,
}

impl Cancel {
    fn drops(&self, seq: usize) -> bool {
        self.bits >> seq & 1 == 1
    }
}

impl StepWatch for Cancel {
    fn layer_done(&mut self, layer: usize) {
        assert_eq!(layer, self.done, "layers are reported in order");
        self.done += 1;
    }
    fn is_live(&self, seq: SeqId) -> bool {
        !self.drops(seq.0 as usize) || self.done < self.after
    }
}

struct World {
    engine: SimEngine,
    kv: KvMemory,
    sequences: Vec<Sequence>,
    free: Vec<BlockId>,
    spoiled: BTreeSet<(BlockId, usize)>,
}

impl World {
    fn new() -> Self {
        let config = SimConfig { layers: 3, head_dim: 3, block_size: BLOCK_SIZE, ..SimConfig::default() };
        Self {
            kv: KvMemory::new(config.geometry(), POOL_BLOCKS as usize).unwrap(),
            engine: SimEngine::new(config, Box::new(|_| {})).unwrap(),
            sequences: vec![Sequence::default(); MAX_SEQUENCES],
            free: (0..POOL_BLOCKS).map(BlockId).collect(),
            spoiled: BTreeSet::new(),
        }
    }

    fn allocate(&mut self) -> BlockId {
        let block = self.free.remove(0);
        self.kv.poison(block);
        block
    }

    /// Gives back the blocks of a table that no sequence has any more.
    fn release(&mut self, blocks: Vec<BlockId>) {
        for block in blocks {
            if !self.sequences.iter().any(|sequence| sequence.blocks.contains(&block)) {
                self.spoiled.retain(|(spoiled, _)| *spoiled != block);
                self.free.push(block);
            }
        }
    }

    fn first_spoiled(&self, sequence: &Sequence) -> Option<usize> {
        (0..sequence.tokens.len()).find(|position| {
            self.spoiled.contains(&(sequence.blocks[position / BLOCK_SIZE], position % BLOCK_SIZE))
        })
    }

    /// Copies the first `tokens` slots of a block to a new one, with their spoils.
    fn copy(&mut self, from: BlockId, tokens: usize) -> BlockId {
        let to = self.allocate();
        self.kv.copy_slots(from, to, tokens);
        for slot in (0..tokens).filter(|slot| self.spoiled.contains(&(from, *slot))).collect::<Vec<_>>() {
            self.spoiled.insert((to, slot));
        }
        to
    }

    fn expected_logits(&self, tokens: &[u32]) -> Vec<f32> {
        let root = ChainHash::root(&self.engine.spec().model_digest);
        let hash = tokens.iter().fold(root, |hash, token| hash.then(*token));
        text::logits(hash, tokens[tokens.len() - 1], FIRST_RESERVED as usize, 0.0)
    }

    fn pass(&mut self, chosen: u8, tokens: &[u32], mut cancel: Cancel) {
        let chosen: Vec<usize> = (0..MAX_SEQUENCES)
            .filter(|seq| {
                chosen >> seq & 1 == 1 && self.sequences[*seq].tokens.len() + tokens.len() <= MAX_TOKENS
            })
            .collect();
        for seq in &chosen {
            let end = self.sequences[*seq].tokens.len() + tokens.len();
            while self.sequences[*seq].blocks.len() * BLOCK_SIZE < end {
                let block = self.allocate();
                self.sequences[*seq].blocks.push(block);
            }
        }
        let chunks: Vec<Chunk<'_>> = chosen
            .iter()
            .map(|seq| Chunk {
                seq: SeqId(*seq as u64),
                tokens,
                start: self.sequences[*seq].tokens.len(),
                blocks: &self.sequences[*seq].blocks,
                wants_logits: true,
            })
            .collect();
        let result = self.engine.forward(&chunks, &self.kv, &mut cancel);
        if let Some(expected) = chosen.iter().find_map(|seq| self.first_spoiled(&self.sequences[*seq])) {
            assert!(
                matches!(&result, Err(EngineError::CorruptKv { position, .. }) if *position == expected),
                "{result:?} instead of a spoiled position {expected}"
            );
            return;
        }
        let output = result.unwrap();
        let kept = chosen.iter().filter(|seq| !cancel.drops(**seq)).count();
        assert_eq!(output.computed_tokens as usize, kept * tokens.len());
        for (seq, logits) in chosen.into_iter().zip(output.logits) {
            assert_eq!(logits.is_none(), cancel.drops(seq));
            if let Some(logits) = logits {
                self.sequences[seq].tokens.extend_from_slice(tokens);
                assert_eq!(logits, self.expected_logits(&self.sequences[seq].tokens));
            }
        }
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Pass { chosen, tokens, cancelled, after } => {
                self.pass(chosen, &tokens, Cancel { bits: cancelled, after, done: 0 });
            }
            Operation::Fork { of, at } => {
                let Some(child) = self.sequences.iter().position(|sequence| sequence.blocks.is_empty())
                else {
                    return;
                };
                let Sequence { tokens, blocks } = self.sequences[of].clone();
                let at = at.index(tokens.len() + 1);
                let mut shared = blocks[..at / BLOCK_SIZE].to_vec();
                if at % BLOCK_SIZE > 0 {
                    shared.push(self.copy(blocks[at / BLOCK_SIZE], at % BLOCK_SIZE));
                }
                self.sequences[child] = Sequence { tokens: tokens[..at].to_vec(), blocks: shared };
            }
            Operation::Move { seq } => {
                let Sequence { tokens, blocks } = self.sequences[seq].clone();
                let used = tokens.len().div_ceil(BLOCK_SIZE);
                let copied =
                    (0..used).map(|i| self.copy(blocks[i], BLOCK_SIZE.min(tokens.len() - i * BLOCK_SIZE)));
                self.sequences[seq].blocks = copied.collect();
                self.release(blocks);
            }
            Operation::Free { seq } => {
                let freed = std::mem::take(&mut self.sequences[seq]);
                self.release(freed.blocks);
            }
            Operation::Spoil { seq, position, layer, v, element, bit } => {
                let Sequence { tokens, blocks } = &self.sequences[seq];
                if tokens.is_empty() {
                    return;
                }
                let position = position.index(tokens.len());
                let (block, slot) = (blocks[position / BLOCK_SIZE], position % BLOCK_SIZE);
                // A second flip could undo the first.
                if self.spoiled.insert((block, slot)) {
                    let part = if v { Part::V } else { Part::K };
                    let element = &mut self.kv.row_mut(block, layer, part, slot)[element];
                    *element = f32::from_bits(element.to_bits() ^ 1 << bit);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn every_life_of_sequences_follows_its_tokens(operations in prop::collection::vec(operation(), 1..80)) {
        let mut world = World::new();
        for operation in operations {
            world.run(operation);
        }
    }
}
