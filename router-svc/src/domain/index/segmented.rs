//! The index of `armature-prefix-index` behind the port: ranks for its worker numbers.

use std::cell::RefCell;
use std::collections::HashMap;

use armature_contracts::ids::WorkerRank;
use armature_contracts::kv_hash::block_digest;
use armature_prefix_index::{Index, Options, Search, Worker};

use super::{IndexTotals, Matches, Parent, RankBlocks};
use crate::domain::units::{Blocks, SequenceHash, Tier};
use crate::ports::PrefixIndex;

/// Shards: the router writes from one thread at a time, so more would only be more locks.
const SHARDS: usize = 1;
/// Ranks that can have blocks at a time, those whose end is not swept yet included. More are counted and not indexed.
const MAX_RANKS: usize = 16_384;

/// Bytes that hold an empty index.
pub const LEAST_BYTES: usize = 1 << 20;

/// A prefix index within a byte budget.
pub struct SegmentedIndex {
    index: Index,
    ranks: HashMap<WorkerRank, Place>,
    /// By the place of a number.
    numbers: Vec<Option<(Worker, WorkerRank)>>,
    scratch: RefCell<Scratch>,
}

/// Where a rank's blocks are.
enum Place {
    Indexed(Worker),
    /// No number was free: everything of it is forgotten.
    Counted(RankBlocks),
}

#[derive(Default)]
struct Scratch {
    hashes: Vec<u64>,
    search: Search,
}

impl Scratch {
    fn hashes(&mut self, blocks: &[SequenceHash]) -> &[u64] {
        self.hashes.clear();
        self.hashes.extend(blocks.iter().map(|hash| hash.0));
        &self.hashes
    }
}

impl SegmentedIndex {
    /// An empty index of at most `max_bytes`, and at least [`LEAST_BYTES`]; `keys` are random.
    pub fn new(max_bytes: usize, keys: [u64; 3]) -> Self {
        Self::of(options(max_bytes.max(LEAST_BYTES), keys))
    }

    /// An empty index made so, except that its budget is raised to what it needs.
    pub(crate) fn of(mut options: Options) -> Self {
        let index = loop {
            match Index::new(options) {
                Ok(index) => break index,
                Err(too_small) => options.max_bytes = too_small.least,
            }
        };
        Self { index, ranks: HashMap::new(), numbers: Vec::new(), scratch: RefCell::default() }
    }

    fn worker(&self, rank: WorkerRank) -> Option<Worker> {
        match self.ranks.get(&rank)? {
            Place::Indexed(worker) => Some(*worker),
            Place::Counted(_) => None,
        }
    }

    fn place(&mut self, rank: WorkerRank) -> &mut Place {
        let Self { index, ranks, numbers, .. } = self;
        ranks.entry(rank).or_insert_with(|| {
            let Some(worker) = index.add_worker() else { return Place::Counted(RankBlocks::default()) };
            if numbers.len() <= worker.place() {
                numbers.resize(worker.place() + 1, None);
            }
            numbers[worker.place()] = Some((worker, rank));
            Place::Indexed(worker)
        })
    }
}

/// Options of a router's index.
fn options(max_bytes: usize, keys: [u64; 3]) -> Options {
    Options { max_bytes, shards: SHARDS, max_workers: MAX_RANKS, keys, digest }
}

/// The index numbers tiers from 0.
pub(crate) fn digest(hash: u64, tier: u8) -> u64 {
    block_digest(hash, tier + Tier::Device as u8)
}

fn number(tier: Tier) -> u8 {
    tier as u8 - Tier::Device as u8
}

impl PrefixIndex for SegmentedIndex {
    fn store(&mut self, rank: WorkerRank, parent: Parent, blocks: &[SequenceHash], tier: Tier) -> usize {
        let worker = match self.place(rank) {
            Place::Indexed(worker) => *worker,
            Place::Counted(held) => {
                held.forgotten += blocks.len() as u64;
                let digests = blocks.iter().map(|hash| block_digest(hash.0, tier as u8));
                held.digest = digests.fold(held.digest, u64::wrapping_add);
                return blocks.len();
            }
        };
        let parent = match parent {
            Parent::Root => armature_prefix_index::Parent::Root,
            Parent::Block(hash) => armature_prefix_index::Parent::Block(hash.0),
            Parent::Unknown => armature_prefix_index::Parent::Unknown,
        };
        self.index.store(worker, parent, self.scratch.get_mut().hashes(blocks), number(tier))
    }

    fn remove(&mut self, rank: WorkerRank, blocks: &[SequenceHash], tier: Tier) -> usize {
        match self.ranks.get_mut(&rank) {
            None => 0,
            Some(Place::Indexed(worker)) => {
                self.index.remove(*worker, self.scratch.get_mut().hashes(blocks), number(tier))
            }
            Some(Place::Counted(held)) => {
                let found = held.forgotten.min(blocks.len() as u64);
                held.forgotten -= found;
                let digests = blocks.iter().map(|hash| block_digest(hash.0, tier as u8));
                held.digest = digests.fold(held.digest, u64::wrapping_sub);
                found as usize
            }
        }
    }

    fn expect(&self, blocks: &[SequenceHash]) {
        self.index.expect(self.scratch.borrow_mut().hashes(blocks));
    }

    fn drop_rank(&mut self, rank: WorkerRank) {
        if let Some(Place::Indexed(worker)) = self.ranks.remove(&rank) {
            self.index.drop_worker(worker);
            self.numbers[worker.place()] = None;
        }
    }

    fn find(&self, prompt: &[SequenceHash]) -> Matches {
        let mut scratch = self.scratch.borrow_mut();
        scratch.hashes(prompt);
        let Scratch { hashes, search } = &mut *scratch;
        let found = self.index.find(hashes, search).iter().filter_map(|(worker, depth)| {
            let (number, rank) = self.numbers[worker.place()]?;
            (number == *worker).then_some((rank, Blocks(*depth)))
        });
        Matches::new(found.collect())
    }

    fn verify(&self, rank: WorkerRank, prompt: &[SequenceHash]) -> Blocks {
        let Some(worker) = self.worker(rank) else { return Blocks(0) };
        Blocks(self.index.depth(worker, self.scratch.borrow_mut().hashes(prompt)))
    }

    fn hit(&self, prefix: &[SequenceHash]) {
        self.index.hit(self.scratch.borrow_mut().hashes(prefix));
    }

    fn rank(&self, rank: WorkerRank) -> RankBlocks {
        match self.ranks.get(&rank) {
            None => RankBlocks::default(),
            Some(Place::Counted(held)) => *held,
            Some(Place::Indexed(worker)) => {
                let held = self.index.held(*worker);
                RankBlocks { count: held.count, digest: held.digest, forgotten: held.forgotten }
            }
        }
    }

    fn totals(&self) -> IndexTotals {
        let totals = self.index.totals();
        IndexTotals { entries: totals.pairs, forgotten: totals.forgotten, bytes: Some(totals.bytes) }
    }

    fn tidy(&mut self) {
        _ = self.index.tidy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;

    #[test]
    fn the_least_budget_holds_an_empty_index() {
        assert!(options(LEAST_BYTES, [0; 3]).least() < LEAST_BYTES);
        let bytes = SegmentedIndex::new(0, [1, 2, 3]).totals().bytes;
        assert!(bytes.is_some_and(|bytes| bytes < LEAST_BYTES), "{bytes:?}");
    }

    #[test]
    fn ranks_beyond_the_numbers_are_counted() {
        let options = Options { max_workers: 1, ..options(1 << 20, [1, 2, 3]) };
        let mut index = SegmentedIndex::of(options);
        let rank = |n| WorkerRank::first(InstanceId(n));
        let blocks: Vec<_> = (1..=9).map(SequenceHash).collect();
        for n in 1..=2 {
            assert_eq!(index.store(rank(n), Parent::Root, &blocks, Tier::Device), 9);
        }
        let digest =
            armature_contracts::kv_hash::set_digest(blocks.iter().map(|hash| (hash.0, Tier::Device as u8)));
        assert_eq!(index.rank(rank(1)), RankBlocks { count: 9, digest, forgotten: 0 });
        assert_eq!(index.rank(rank(2)), RankBlocks { count: 0, digest, forgotten: 9 });
        assert_eq!(index.find(&blocks), Matches::new(vec![(rank(1), Blocks(9))]));
        assert_eq!(index.remove(rank(2), &blocks, Tier::Device), 9);
        assert_eq!(index.rank(rank(2)), RankBlocks::default());
        // The next one to come has the number of one that went.
        index.drop_rank(rank(1));
        index.store(rank(3), Parent::Root, &blocks, Tier::Device);
        assert_eq!(index.find(&blocks), Matches::new(vec![(rank(3), Blocks(9))]));
    }
}
