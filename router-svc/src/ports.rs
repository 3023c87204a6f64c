//! What the domain needs from outside, in its own types.

use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_svc_kit::address::Address;

use crate::domain::index::{IndexTotals, Matches, Parent, RankBlocks};
use crate::domain::units::{Blocks, SequenceHash, Tier};

/// Which ranks have which blocks: a set of (sequence hash, tier) per rank, bounded.
///
/// What goes beyond the bound is forgotten from the tail of chains, so that what remains of a chain is still a prefix, and is
/// counted per rank. A block that is removed does not take its children along.
pub trait PrefixIndex: Send {
    /// Stores blocks: consecutive ones of one sequence, or, when their parent is [`Parent::Unknown`], any that the rank did not have in
    /// `tier`. Answers how many of them were absent there before.
    fn store(&mut self, rank: WorkerRank, parent: Parent, blocks: &[SequenceHash], tier: Tier) -> usize;

    /// Removes blocks from `tier`. Answers how many were there, those forgotten earlier counted as having been there.
    fn remove(&mut self, rank: WorkerRank, blocks: &[SequenceHash], tier: Tier) -> usize;

    /// Blocks that will be stored or removed after a few others: a hint.
    fn expect(&self, _blocks: &[SequenceHash]) {}

    /// Drops everything of a rank, at once.
    fn drop_rank(&mut self, rank: WorkerRank);

    /// Blocks per rank from the first of `prompt` on, in any tier. A block that is missing before others of the same rank may be passed
    /// over: a match may be too long, never too short.
    fn find(&self, prompt: &[SequenceHash]) -> Matches;

    /// Blocks of one rank from the first of `prompt` on without a gap.
    fn verify(&self, rank: WorkerRank, prompt: &[SequenceHash]) -> Blocks;

    /// A request goes where these blocks, the first of its prompt, are: they are worth keeping.
    fn hit(&self, _prefix: &[SequenceHash]) {}

    /// Count, digest and forgotten blocks of a rank.
    fn rank(&self, rank: WorkerRank) -> RankBlocks;

    /// Its gauges.
    fn totals(&self) -> IndexTotals;

    /// Lets it do what it has put off.
    fn tidy(&mut self) {}
}

/// Where the routers of this deployment are.
pub trait Routers: Send + Sync {
    /// The gRPC address of a router that is a member.
    fn address(&self, router: InstanceId) -> Option<Address>;
}
