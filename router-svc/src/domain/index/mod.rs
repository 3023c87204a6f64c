//! Which worker has which blocks of KV.
//!
//! [`segmented`] holds what workers said (behind the port [`crate::ports::PrefixIndex`]; [`map`] is the plain baseline), [`wire`] checks every
//! batch of events by count and digest and knows which ranks are known, [`predicted`] holds what routed requests will have stored soon, and
//! [`approximate`] what workers that say nothing are believed to have.

pub mod approximate;
#[cfg(test)]
mod contract;
pub mod keyed_hash;
pub mod map;
pub mod predicted;
pub mod prompts;
pub mod segmented;
pub mod snapshot;
pub mod wire;

use armature_contracts::ids::WorkerRank;

use super::units::{Blocks, SequenceHash};

/// What comes before the first of some blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// Nothing: it starts a sequence.
    Root,
    /// This block.
    Block(SequenceHash),
    /// Not said: the blocks are a set without order.
    Unknown,
}

/// What an index holds of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankBlocks {
    /// (hash, tier) pairs held.
    pub count: u64,
    /// Set digest of what the rank has, held or forgotten: the wrapping sum of `armature_kv_hash::block_digest`.
    pub digest: u64,
    /// Pairs that the rank has and the index has let go of.
    pub forgotten: u64,
}

/// Gauges of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexTotals {
    /// (hash, tier) pairs of all ranks together.
    pub entries: u64,
    /// Pairs forgotten since the start.
    pub forgotten: u64,
    /// Bytes it takes; none when it does not count them.
    pub bytes: Option<usize>,
}

/// Length of the longest prefix of a prompt per rank; ranks without the first block are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matches(Vec<(WorkerRank, Blocks)>);

impl Matches {
    /// From pairs in any order; of equal ranks the longest counts.
    pub fn new(mut pairs: Vec<(WorkerRank, Blocks)>) -> Self {
        pairs.retain(|(_, blocks)| blocks.0 > 0);
        pairs.sort_unstable_by_key(|(rank, blocks)| (*rank, std::cmp::Reverse(*blocks)));
        pairs.dedup_by_key(|(rank, _)| *rank);
        Self(pairs)
    }

    /// Blocks that `rank` has.
    pub fn of(&self, rank: WorkerRank) -> Blocks {
        self.0.binary_search_by_key(&rank, |(rank, _)| *rank).map_or(Blocks(0), |at| self.0[at].1)
    }

    /// Per rank the longer of both.
    #[must_use]
    pub fn or(mut self, other: &Self) -> Self {
        if other.0.is_empty() {
            return self;
        }
        self.0.extend(&other.0);
        Self::new(self.0)
    }

    /// The pairs, by rank.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerRank, Blocks)> + '_ {
        self.0.iter().copied()
    }
}
