//! What workers say about their KV, checked.
//!
//! A rank is UNKNOWN until a snapshot (or its batch 1) has come, and after any doubt: it has no entries then. Every batch must carry the
//! next number, and its count and digest must be those of the set before it plus stored minus removed. The index itself must agree too:
//! `held + forgotten = count`, and both digests are the same.

use std::collections::HashMap;

use armature_contracts::ids::WorkerRank;
use armature_contracts::kv_hash::block_digest;

use super::snapshot::Snapshot;
use super::{IndexTotals, Matches, Parent, RankBlocks};
use crate::domain::units::{Blocks, SequenceHash, Tier};
use crate::ports::PrefixIndex;

/// Events by which the index is told what is coming: events of one block each then still overlap their memory accesses.
const AHEAD: usize = 8;

/// A place in a rank's stream of batches, and its set there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// Number of the last batch; 0 before the first.
    pub batch: u64,
    /// Size of the set.
    pub count: u64,
    /// Digest of the set.
    pub digest: u64,
}

/// A change of a rank's set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Absent -> present: consecutive blocks below `parent`.
    Stored {
        /// Where.
        tier: Tier,
        /// The block before the first.
        parent: Parent,
        /// The blocks.
        blocks: Vec<SequenceHash>,
    },
    /// Present -> absent.
    Removed {
        /// Where.
        tier: Tier,
        /// The blocks.
        blocks: Vec<SequenceHash>,
    },
    /// Everything is gone.
    Cleared,
}

impl Event {
    fn blocks(&self) -> &[SequenceHash] {
        match self {
            Self::Stored { blocks, .. } | Self::Removed { blocks, .. } => blocks,
            Self::Cleared => &[],
        }
    }
}

/// Changes of one rank, and what its set is after them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// Number, count and digest after it.
    pub mark: Mark,
    /// In order.
    pub events: Vec<Event>,
}

/// Why the index no longer trusts what it has of a rank: only a snapshot helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// A batch before anything is known.
    #[error("no snapshot yet")]
    NoSnapshot,
    /// Batches are missing.
    #[error("batch {got} follows {last}")]
    Hole {
        /// Last one applied.
        last: u64,
        /// The one that came.
        got: u64,
    },
    /// The set's size is not what its changes make it.
    #[error("{got} blocks where the worker has {expected}")]
    Count {
        /// The worker's.
        expected: u64,
        /// By the changes.
        got: u64,
    },
    /// The set's digest is not what its changes make it.
    #[error("digests differ")]
    Digest,
    /// The index has not taken the changes that the wire described.
    #[error("the index disagrees with the events")]
    IndexDiffers,
    /// Chunks are missing or of different snapshots.
    #[error("snapshot chunks are missing or mixed")]
    SnapshotBroken,
    /// More than may be kept.
    #[error("a snapshot of {count} blocks is above the limit of {limit}")]
    SnapshotTooLarge {
        /// Announced.
        count: u64,
        /// Taken.
        limit: u64,
    },
}

impl Doubt {
    /// A short name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSnapshot => "no_snapshot",
            Self::Hole { .. } => "hole",
            Self::Count { .. } => "count",
            Self::Digest => "digest",
            Self::IndexDiffers => "index_differs",
            Self::SnapshotBroken => "snapshot_broken",
            Self::SnapshotTooLarge { .. } => "snapshot_too_large",
        }
    }
}

/// An index together with how far each rank's stream has been applied.
pub struct CheckedIndex {
    index: Box<dyn PrefixIndex>,
    /// Known ranks only.
    marks: HashMap<WorkerRank, Mark>,
}

impl CheckedIndex {
    /// Around an empty index.
    pub fn new(index: Box<dyn PrefixIndex>) -> Self {
        Self { index, marks: HashMap::new() }
    }

    /// Applies a batch; one that was applied before changes nothing. After a doubt the rank is UNKNOWN.
    pub fn apply(&mut self, rank: WorkerRank, batch: &Batch) -> Result<(), Doubt> {
        let applied = self.try_apply(rank, batch);
        if applied.is_err() {
            self.forget_rank(rank);
        }
        applied
    }

    /// Replaces everything of a rank.
    pub fn replace(&mut self, rank: WorkerRank, snapshot: &Snapshot) -> Result<(), Doubt> {
        self.forget_rank(rank);
        for (tier, blocks) in &snapshot.blocks {
            self.index.store(rank, Parent::Unknown, blocks, *tier);
        }
        let checked = self.check(rank, snapshot.mark);
        match checked {
            Ok(()) => _ = self.marks.insert(rank, snapshot.mark),
            Err(_) => self.forget_rank(rank),
        }
        checked
    }

    /// Makes a rank UNKNOWN: nothing of it remains.
    pub fn forget_rank(&mut self, rank: WorkerRank) {
        self.marks.remove(&rank);
        self.index.drop_rank(rank);
    }

    /// How far a rank's stream has been applied; none when it is UNKNOWN.
    pub fn mark(&self, rank: WorkerRank) -> Option<Mark> {
        self.marks.get(&rank).copied()
    }

    /// What the index holds of a rank.
    pub fn rank(&self, rank: WorkerRank) -> RankBlocks {
        self.index.rank(rank)
    }

    /// Blocks per rank from the first of `prompt` on.
    pub fn find(&self, prompt: &[SequenceHash]) -> Matches {
        self.index.find(prompt)
    }

    /// Blocks of one rank from the first of `prompt` on, each of them looked at.
    pub fn verify(&self, rank: WorkerRank, prompt: &[SequenceHash]) -> Blocks {
        self.index.verify(rank, prompt)
    }

    /// A request goes where these blocks, the first of its prompt, are.
    pub fn hit(&self, prefix: &[SequenceHash]) {
        self.index.hit(prefix);
    }

    /// Gauges.
    pub fn totals(&self) -> IndexTotals {
        self.index.totals()
    }

    /// Lets the index do what it has put off.
    pub fn tidy(&mut self) {
        self.index.tidy();
    }

    fn try_apply(&mut self, rank: WorkerRank, batch: &Batch) -> Result<(), Doubt> {
        let got = batch.mark.batch;
        // Batch 1 has the whole history before it: nothing.
        let known =
            self.marks.get(&rank).copied().or((got == 1).then(Mark::default)).ok_or(Doubt::NoSnapshot)?;
        if got <= known.batch {
            return Ok(());
        }
        if got != known.batch + 1 {
            return Err(Doubt::Hole { last: known.batch, got });
        }
        let (mut count, mut digest) = (known.count, known.digest);
        for event in &batch.events {
            match event {
                Event::Stored { tier, blocks, .. } => {
                    count = count.wrapping_add(blocks.len() as u64);
                    digest = blocks
                        .iter()
                        .fold(digest, |sum, hash| sum.wrapping_add(block_digest(hash.0, *tier as u8)));
                }
                Event::Removed { tier, blocks } => {
                    count = count.wrapping_sub(blocks.len() as u64);
                    digest = blocks
                        .iter()
                        .fold(digest, |sum, hash| sum.wrapping_sub(block_digest(hash.0, *tier as u8)));
                }
                Event::Cleared => (count, digest) = (0, 0),
            }
        }
        if count != batch.mark.count {
            return Err(Doubt::Count { expected: batch.mark.count, got: count });
        }
        if digest != batch.mark.digest {
            return Err(Doubt::Digest);
        }
        for (at, event) in batch.events.iter().enumerate() {
            if let Some(later) = batch.events.get(at + AHEAD) {
                self.index.expect(later.blocks());
            }
            match event {
                Event::Stored { tier, parent, blocks } => _ = self.index.store(rank, *parent, blocks, *tier),
                Event::Removed { tier, blocks } => _ = self.index.remove(rank, blocks, *tier),
                Event::Cleared => self.index.drop_rank(rank),
            }
        }
        self.check(rank, batch.mark)?;
        self.marks.insert(rank, batch.mark);
        Ok(())
    }

    fn check(&self, rank: WorkerRank, mark: Mark) -> Result<(), Doubt> {
        let held = self.index.rank(rank);
        let same = held.count + held.forgotten == mark.count && held.digest == mark.digest;
        if same { Ok(()) } else { Err(Doubt::IndexDiffers) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::index::contract::small_segmented;
    use crate::domain::index::map::MapIndex;
    use armature_contracts::ids::InstanceId;
    use armature_contracts::kv_hash::set_digest;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const RANK: WorkerRank = WorkerRank { instance: InstanceId(1), dp_rank: 0 };

    /// A worker's set, and the batches it publishes.
    #[derive(Default)]
    struct Publisher {
        set: BTreeSet<u64>,
        batch: u64,
    }

    impl Publisher {
        fn batch(&mut self, events: Vec<Event>) -> Batch {
            for event in &events {
                match event {
                    Event::Stored { blocks, .. } => self.set.extend(blocks.iter().map(|hash| hash.0)),
                    Event::Removed { blocks, .. } => {
                        blocks.iter().for_each(|hash| _ = self.set.remove(&hash.0))
                    }
                    Event::Cleared => self.set.clear(),
                }
            }
            self.batch += 1;
            Batch { mark: self.mark(), events }
        }

        fn mark(&self) -> Mark {
            let digest = set_digest(self.set.iter().map(|hash| (*hash, Tier::Device as u8)));
            Mark { batch: self.batch, count: self.set.len() as u64, digest }
        }

        fn snapshot(&self) -> Snapshot {
            let blocks = self.set.iter().copied().map(SequenceHash).collect();
            Snapshot { mark: self.mark(), blocks: vec![(Tier::Device, blocks)] }
        }

        /// Toggles blocks, so that what is stored was absent and what is removed was present.
        fn toggle(&mut self, blocks: &BTreeSet<u64>) -> Batch {
            let (removed, stored): (Vec<u64>, Vec<u64>) =
                blocks.iter().partition(|hash| self.set.contains(hash));
            let hashes = |list: Vec<u64>| list.into_iter().map(SequenceHash).collect();
            self.batch(vec![
                Event::Stored { tier: Tier::Device, parent: Parent::Root, blocks: hashes(stored) },
                Event::Removed { tier: Tier::Device, blocks: hashes(removed) },
            ])
        }
    }

    fn index(bound: usize) -> CheckedIndex {
        CheckedIndex::new(Box::new(MapIndex::new(bound, 5)))
    }

    #[test]
    fn a_hole_makes_the_rank_unknown_until_a_snapshot() {
        let (mut index, mut worker) = (index(100), Publisher::default());
        assert_eq!(index.apply(RANK, &worker.toggle(&BTreeSet::from([1, 2]))), Ok(()));
        worker.toggle(&BTreeSet::from([3]));
        let after = worker.toggle(&BTreeSet::from([4]));
        assert_eq!(index.apply(RANK, &after), Err(Doubt::Hole { last: 1, got: 3 }));
        assert_eq!((index.mark(RANK), index.totals().entries), (None, 0));
        assert_eq!(index.apply(RANK, &worker.toggle(&BTreeSet::from([5]))), Err(Doubt::NoSnapshot));
        assert_eq!(index.replace(RANK, &worker.snapshot()), Ok(()));
        assert_eq!(index.mark(RANK), Some(worker.mark()));
        assert_eq!(index.apply(RANK, &worker.toggle(&BTreeSet::from([1, 6]))), Ok(()));
    }

    #[test]
    fn wrong_counts_and_digests_are_doubts() {
        let mut worker = Publisher::default();
        let mut batch = worker.toggle(&BTreeSet::from([1, 2]));
        batch.mark.count += 1;
        assert_eq!(index(100).apply(RANK, &batch), Err(Doubt::Count { expected: 3, got: 2 }));
        batch.mark.count -= 1;
        batch.mark.digest ^= 1;
        assert_eq!(index(100).apply(RANK, &batch), Err(Doubt::Digest));
    }

    #[test]
    fn an_event_that_repeats_what_is_known_is_a_doubt() {
        let (mut index, mut worker) = (index(100), Publisher::default());
        index.apply(RANK, &worker.toggle(&BTreeSet::from([1]))).unwrap();
        // Stored twice, with count and digest that pretend it was new.
        let digest = set_digest([(1, 1), (1, 1)]);
        let stored =
            Event::Stored { tier: Tier::Device, parent: Parent::Root, blocks: vec![SequenceHash(1)] };
        let batch = Batch { mark: Mark { batch: 2, count: 2, digest }, events: vec![stored] };
        assert_eq!(index.apply(RANK, &batch), Err(Doubt::IndexDiffers));
    }

    #[test]
    fn old_batches_change_nothing() {
        let (mut index, mut worker) = (index(100), Publisher::default());
        let first = worker.toggle(&BTreeSet::from([1]));
        index.apply(RANK, &first).unwrap();
        index.apply(RANK, &worker.toggle(&BTreeSet::from([2]))).unwrap();
        assert_eq!(index.apply(RANK, &first), Ok(()));
        assert_eq!(index.mark(RANK), Some(worker.mark()));
    }

    fn follows(mut index: CheckedIndex, batches: &[BTreeSet<u64>]) -> Result<(), TestCaseError> {
        let mut worker = Publisher::default();
        for (at, blocks) in batches.iter().enumerate() {
            let batch = if at % 7 == 6 { worker.batch(vec![Event::Cleared]) } else { worker.toggle(blocks) };
            prop_assert_eq!(index.apply(RANK, &batch), Ok(()));
            prop_assert_eq!(index.mark(RANK), Some(worker.mark()));
            let held = index.rank(RANK);
            prop_assert_eq!(held.count + held.forgotten, worker.set.len() as u64);
            prop_assert_eq!(held.digest, worker.mark().digest);
        }
        Ok(())
    }

    fn batches(blocks: u64, each: usize) -> impl Strategy<Value = Vec<BTreeSet<u64>>> {
        prop::collection::vec(prop::collection::btree_set(0..blocks, 0..each), 0..20)
    }

    proptest! {
        #[test]
        fn the_view_is_the_workers_own(batches in batches(40, 10), bound in 1usize..60) {
            follows(index(bound), &batches)?;
        }

        #[test]
        fn the_view_is_the_workers_own_whatever_the_segmented_index_forgets(batches in batches(3_000, 900), kib in 20usize..40) {
            follows(CheckedIndex::new(Box::new(small_segmented(kib))), &batches)?;
        }
    }
}
