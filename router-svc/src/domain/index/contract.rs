//! What every index is, whatever it is made of.

use std::collections::{BTreeMap, BTreeSet};

use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_contracts::kv_hash::set_digest;
use armature_prefix_index::Options;
use proptest::prelude::*;

use super::map::MapIndex;
use super::segmented::{SegmentedIndex, digest};
use super::{Parent, RankBlocks};
use crate::domain::units::{Blocks, SequenceHash, Tier};
use crate::ports::PrefixIndex;

/// A segmented index that may forget: a few hundred blocks fill it.
pub(super) fn small_segmented(kib: usize) -> SegmentedIndex {
    SegmentedIndex::of(Options { max_bytes: kib << 10, shards: 2, max_workers: 16, keys: [3, 5, 7], digest })
}

pub(super) fn rank(n: u64) -> WorkerRank {
    WorkerRank::first(InstanceId(n))
}

/// Chain `c`, block `i`: chains share blocks up to depth `c`, as prompts with a common start do.
pub(super) fn chain(c: u64, len: u64) -> Vec<SequenceHash> {
    (0..len).map(|i| SequenceHash(if i < c { i + 1 } else { (c + 1) * 1000 + i })).collect()
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Store { rank: u64, chain: u64, from: usize, len: usize, tier: usize },
    Remove { rank: u64, chain: u64, at: usize, tier: usize },
    Drop { rank: u64 },
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let store = (0u64..4, 0u64..4, 0usize..8, 1usize..8, 0usize..2)
        .prop_map(|(rank, chain, from, len, tier)| Step::Store { rank, chain, from, len, tier });
    let remove = (0u64..4, 0u64..4, 0usize..12, 0usize..2).prop_map(|(rank, chain, at, tier)| Step::Remove {
        rank,
        chain,
        at,
        tier,
    });
    let drop = (0u64..4).prop_map(|rank| Step::Drop { rank });
    prop::collection::vec(prop_oneof![6 => store, 3 => remove, 1 => drop], 0..60)
}

pub(super) type Model = BTreeMap<u64, BTreeSet<(u64, Tier)>>;

pub(super) fn run(index: &mut impl PrefixIndex, model: &mut Model, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Store { rank: r, chain: c, from, len, tier } => {
                let blocks = chain(c, 16);
                let parent = from.checked_sub(1).map_or(Parent::Root, |at| Parent::Block(blocks[at]));
                let run = &blocks[from..from + len];
                index.store(rank(r), parent, run, Tier::ALL[tier]);
                model.entry(r).or_default().extend(run.iter().map(|hash| (hash.0, Tier::ALL[tier])));
            }
            Step::Remove { rank: r, chain: c, at, tier } => {
                let hash = chain(c, 16)[at];
                // A worker removes only what it has.
                if model.entry(r).or_default().remove(&(hash.0, Tier::ALL[tier])) {
                    assert_eq!(index.remove(rank(r), &[hash], Tier::ALL[tier]), 1);
                }
            }
            Step::Drop { rank: r } => {
                index.drop_rank(rank(r));
                model.remove(&r);
            }
        }
    }
}

fn is_the_set_of_sets(mut index: impl PrefixIndex, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    run(&mut index, &mut model, steps);
    let mut entries = 0;
    for (r, set) in &model {
        let digest = set_digest(set.iter().map(|(hash, tier)| (*hash, *tier as u8)));
        let expected = RankBlocks { count: set.len() as u64, digest, forgotten: 0 };
        prop_assert_eq!(index.rank(rank(*r)), expected);
        entries += set.len() as u64;
    }
    prop_assert_eq!((index.totals().entries, index.totals().forgotten), (entries, 0));
    for c in 0..4 {
        let prompt = chain(c, 16);
        let matches = index.find(&prompt);
        for r in 0..4 {
            let set = model.get(&r).cloned().unwrap_or_default();
            let has = |hash: &SequenceHash| Tier::ALL.iter().any(|tier| set.contains(&(hash.0, *tier)));
            let depth = prompt.iter().take_while(|hash| has(hash)).count();
            prop_assert_eq!(index.verify(rank(r), &prompt), Blocks(depth as u32));
            let holes = prompt[depth..].iter().any(has);
            let found = matches.of(rank(r)).0 as usize;
            prop_assert!(found == depth || (holes && found > depth), "{} for {}", found, depth);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_segmented_index_is_the_set_of_sets(steps in steps()) {
        is_the_set_of_sets(SegmentedIndex::new(0, [3, 5, 7]), steps)?;
    }

    #[test]
    fn the_map_is_the_set_of_sets(steps in steps()) {
        is_the_set_of_sets(MapIndex::new(10_000, 7), steps)?;
    }
}
