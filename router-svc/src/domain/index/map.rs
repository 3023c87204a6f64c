//! The index as hash maps, the baseline: per block the ranks that have it, per rank its blocks and their tiers.
//!
//! A sequence hash is chained, so a block has one depth whoever stores it. Forgetting takes a rank's deepest blocks first: what it
//! leaves of a chain is a prefix, where forgetting by age alone would punch holes.

use std::collections::HashMap;

use armature_contracts::ids::WorkerRank;
use armature_contracts::kv_hash::block_digest;

use super::keyed_hash::KeyedHash;
use super::{IndexTotals, Matches, Parent, RankBlocks};
use crate::domain::units::{Blocks, SequenceHash, Tier, TierSet};
use crate::ports::PrefixIndex;

/// Depth of a block whose parent is not known (from a snapshot): forgotten first.
const UNKNOWN_DEPTH: u32 = u32::MAX;
/// Forgetting takes this part of a rank's blocks at once, so that its search is paid rarely.
const FORGET_FRACTION: usize = 16;

struct Block {
    depth: u32,
    /// Sorted.
    holders: Vec<WorkerRank>,
}

struct Rank {
    blocks: HashMap<SequenceHash, TierSet, KeyedHash>,
    totals: RankBlocks,
}

/// Depth of a child of a block at `depth`.
fn below(depth: u32) -> Option<u32> {
    (depth < UNKNOWN_DEPTH - 1).then(|| depth + 1)
}

/// A prefix index in memory.
pub struct MapIndex {
    key: KeyedHash,
    blocks: HashMap<SequenceHash, Block, KeyedHash>,
    ranks: HashMap<WorkerRank, Rank>,
    entries: usize,
    max_entries: usize,
    forgotten: u64,
}

impl MapIndex {
    /// An empty index of at most `max_entries` blocks, each rank's counted; `key` is random.
    pub fn new(max_entries: usize, key: u64) -> Self {
        let key = KeyedHash::new(key);
        Self {
            key,
            blocks: HashMap::with_hasher(key),
            ranks: HashMap::new(),
            entries: 0,
            max_entries: max_entries.max(1),
            forgotten: 0,
        }
    }

    fn depth_below(&self, parent: Parent) -> Option<u32> {
        match parent {
            Parent::Root => Some(0),
            Parent::Block(hash) => below(self.blocks.get(&hash)?.depth),
            Parent::Unknown => None,
        }
    }

    fn unlink(&mut self, rank: WorkerRank, hash: SequenceHash) {
        self.entries -= 1;
        let Some(block) = self.blocks.get_mut(&hash) else { return };
        if let Ok(at) = block.holders.binary_search(&rank) {
            block.holders.remove(at);
        }
        if block.holders.is_empty() {
            self.blocks.remove(&hash);
        }
    }

    /// Forgets the deepest blocks of the rank that has most, until the bound holds.
    fn forget(&mut self) {
        while self.entries > self.max_entries {
            let excess = self.entries - self.max_entries;
            let largest = self.ranks.iter().max_by_key(|(rank, held)| (held.blocks.len(), **rank));
            let Some((&rank, held)) = largest else { return };
            let take = excess.max(held.blocks.len() / FORGET_FRACTION).clamp(1, held.blocks.len());
            let depth =
                |hash: &SequenceHash| self.blocks.get(hash).map_or(UNKNOWN_DEPTH, |block| block.depth);
            let mut order: Vec<_> = held.blocks.keys().map(|hash| (depth(hash), *hash)).collect();
            if take < order.len() {
                order.select_nth_unstable_by(take, |a, b| b.cmp(a));
                order.truncate(take);
            }
            for (_, hash) in order {
                let Some(held) = self.ranks.get_mut(&rank) else { break };
                let tiers = held.blocks.remove(&hash).unwrap_or_default();
                for _ in tiers.iter() {
                    held.totals.count -= 1;
                    held.totals.forgotten += 1;
                    self.forgotten += 1;
                }
                self.unlink(rank, hash);
            }
        }
    }
}

impl PrefixIndex for MapIndex {
    fn store(&mut self, rank: WorkerRank, parent: Parent, blocks: &[SequenceHash], tier: Tier) -> usize {
        let mut depth = self.depth_below(parent);
        let key = self.key;
        let held = self
            .ranks
            .entry(rank)
            .or_insert_with(|| Rank { blocks: HashMap::with_hasher(key), totals: RankBlocks::default() });
        let mut new = 0;
        for hash in blocks {
            let tiers = held.blocks.entry(*hash).or_default();
            let linked = !tiers.is_empty();
            if tiers.insert(tier) {
                new += 1;
                held.totals.count += 1;
                held.totals.digest = held.totals.digest.wrapping_add(block_digest(hash.0, tier as u8));
            }
            let block = self
                .blocks
                .entry(*hash)
                .or_insert_with(|| Block { depth: UNKNOWN_DEPTH, holders: Vec::with_capacity(1) });
            block.depth = block.depth.min(depth.unwrap_or(UNKNOWN_DEPTH));
            depth = if parent == Parent::Unknown { None } else { below(block.depth) };
            if !linked {
                self.entries += 1;
                if let Err(at) = block.holders.binary_search(&rank) {
                    block.holders.insert(at, rank);
                }
            }
        }
        self.forget();
        new
    }

    fn remove(&mut self, rank: WorkerRank, blocks: &[SequenceHash], tier: Tier) -> usize {
        let mut found = 0;
        for hash in blocks {
            let Some(held) = self.ranks.get_mut(&rank) else { break };
            let present = held.blocks.get_mut(hash).filter(|tiers| tiers.contains(tier));
            let Some(tiers) = present else {
                if held.totals.forgotten > 0 {
                    held.totals.forgotten -= 1;
                    held.totals.digest = held.totals.digest.wrapping_sub(block_digest(hash.0, tier as u8));
                    found += 1;
                }
                continue;
            };
            tiers.remove(tier);
            let gone = tiers.is_empty();
            found += 1;
            held.totals.count -= 1;
            held.totals.digest = held.totals.digest.wrapping_sub(block_digest(hash.0, tier as u8));
            if gone {
                held.blocks.remove(hash);
                self.unlink(rank, *hash);
            }
        }
        found
    }

    fn drop_rank(&mut self, rank: WorkerRank) {
        let Some(held) = self.ranks.remove(&rank) else { return };
        for hash in held.blocks.into_keys() {
            self.unlink(rank, hash);
        }
    }

    fn find(&self, prompt: &[SequenceHash]) -> Matches {
        let holders = |hash| self.blocks.get(hash).map_or(&[][..], |block| &block.holders[..]);
        let Some(first) = prompt.first() else { return Matches::default() };
        let mut alive = holders(first).to_vec();
        let mut ended = Vec::with_capacity(alive.len());
        for (depth, hash) in prompt.iter().enumerate().skip(1) {
            if alive.is_empty() {
                break;
            }
            let holders = holders(hash);
            if holders == alive {
                continue;
            }
            // Both are sorted: one walk over the holders serves every rank that is still matching.
            let mut rest = holders.iter().peekable();
            alive.retain(|rank| {
                while rest.next_if(|holder| *holder < rank).is_some() {}
                let holds = rest.peek() == Some(&rank);
                if !holds {
                    ended.push((*rank, Blocks(depth as u32)));
                }
                holds
            });
        }
        ended.extend(alive.into_iter().map(|rank| (rank, Blocks(prompt.len() as u32))));
        Matches::new(ended)
    }

    fn rank(&self, rank: WorkerRank) -> RankBlocks {
        self.ranks.get(&rank).map_or_else(RankBlocks::default, |held| held.totals)
    }

    fn verify(&self, rank: WorkerRank, prompt: &[SequenceHash]) -> Blocks {
        let Some(held) = self.ranks.get(&rank) else { return Blocks(0) };
        Blocks(prompt.iter().take_while(|hash| held.blocks.contains_key(hash)).count() as u32)
    }

    fn totals(&self) -> IndexTotals {
        let entries = self.ranks.values().map(|held| held.totals.count).sum();
        IndexTotals { entries, forgotten: self.forgotten, bytes: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{Model, chain, rank, run, steps};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn forgetting_is_bounded_and_counted(steps in steps(), bound in 1usize..20) {
            let (mut index, mut model) = (MapIndex::new(bound, 7), Model::new());
            run(&mut index, &mut model, steps);
            prop_assert!(index.entries <= bound);
            for r in 0..4 {
                let held = index.rank(rank(r));
                let set = model.get(&r).map_or(0, BTreeSet::len) as u64;
                prop_assert!(held.count <= set, "never more than the worker has");
            }
        }

        #[test]
        fn forgetting_leaves_prefixes(lens in prop::collection::vec(1u64..12, 1..6), bound in 1usize..30) {
            let mut index = MapIndex::new(bound, 7);
            for (c, len) in lens.iter().enumerate() {
                index.store(rank(1), Parent::Root, &chain(c as u64, *len), Tier::Device);
            }
            let held = index.rank(rank(1));
            let distinct: BTreeSet<_> = lens.iter().enumerate().flat_map(|(c, len)| chain(c as u64, *len)).collect();
            prop_assert!(held.count <= bound as u64);
            prop_assert!(held.count + held.forgotten >= distinct.len() as u64);
            let found: u64 = index.blocks.len() as u64;
            let mut reachable = BTreeSet::new();
            for (c, len) in lens.iter().enumerate() {
                let prompt = chain(c as u64, *len);
                let depth = index.find(&prompt).of(rank(1)).0 as usize;
                reachable.extend(prompt[..depth].iter().copied());
            }
            prop_assert_eq!(reachable.len() as u64, found, "no block is behind a hole");
        }
    }
}
