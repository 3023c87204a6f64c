//! What the domain needs from outside, in its own types.

use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_svc_kit::address::Address;

use crate::domain::index::{Matches, Parent, RankBlocks};
use crate::domain::units::{SequenceHash, Tier};

/// Which ranks have which blocks: a set of (sequence hash, tier) per rank, bounded by entries.
///
/// What goes beyond the bound is forgotten from the tail of chains, so that what remains of a chain is still a prefix, and is
/// counted per rank. A block that is removed does not take its children along.
pub trait PrefixIndex: Send {
    /// Stores blocks: consecutive ones of one sequence, unless their parent is [`Parent::Unknown`]. Answers how many of them were absent
    /// in `tier` before.
    fn store(&mut self, rank: WorkerRank, parent: Parent, blocks: &[SequenceHash], tier: Tier) -> usize;

    /// Removes blocks from `tier`. Answers how many were there, those forgotten earlier counted as having been there.
    fn remove(&mut self, rank: WorkerRank, blocks: &[SequenceHash], tier: Tier) -> usize;

    /// Drops everything of a rank, at once.
    fn drop_rank(&mut self, rank: WorkerRank);

    /// Blocks per rank from the first of `prompt` on without a gap, in any tier.
    fn find(&self, prompt: &[SequenceHash]) -> Matches;

    /// Count, digest and forgotten blocks of a rank.
    fn rank(&self, rank: WorkerRank) -> RankBlocks;

    /// Blocks of all ranks together, each rank's counted.
    fn entries(&self) -> usize;

    /// Blocks forgotten since the start.
    fn forgotten(&self) -> u64;
}

/// Where the routers of this deployment are.
pub trait Routers: Send + Sync {
    /// The gRPC address of a router that is a member.
    fn address(&self, router: InstanceId) -> Option<Address>;
}
