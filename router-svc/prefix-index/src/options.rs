//! What an index is made of, and the least it needs.

use crate::bucket::Bucket;
use crate::holders::MAX_WORKERS;
use crate::index::{Index, Shard};
use crate::published::Published;
use crate::shard::Writer;
use crate::workers::Workers;

/// Shards of the largest index.
pub(crate) const MAX_SHARDS: usize = 16;
/// Bytes of budget per segment, so that a small index has few segments and a large one short rebuilds.
const SEGMENT_BYTES: usize = 1 << 14;
const SEGMENT_BITS: std::ops::RangeInclusive<u32> = 4..=14;

/// What an index is made of.
#[derive(Clone, Copy)]
pub struct Options {
    /// Bytes that it may take, all of its parts together.
    pub max_bytes: usize,
    /// Shards: writers at a time. Rounded up to a power of two, at most 16.
    pub shards: usize,
    /// Workers that it may know, those whose end has not been swept included; at most [`MAX_WORKERS`].
    pub max_workers: usize,
    /// Random and secret.
    pub keys: [u64; 3],
    /// Digest of a block in a tier.
    pub digest: fn(hash: u64, tier: u8) -> u64,
}

impl Options {
    /// Bytes of an empty index.
    pub fn least(&self) -> usize {
        let Self { shards, max_workers, .. } = self.rounded();
        let (per_table, per_worker, per_shard) = Writer::BYTES;
        size_of::<Index>()
            + self.segments().0 * (size_of::<Published<Bucket>>() + per_table)
            + shards * (size_of::<Shard>() + per_shard + max_workers * per_worker)
            + max_workers * Workers::BYTES
    }

    pub(crate) fn rounded(self) -> Self {
        Self {
            shards: self.shards.clamp(1, MAX_SHARDS).next_power_of_two(),
            max_workers: self.max_workers.clamp(1, MAX_WORKERS),
            ..self
        }
    }

    /// How many, and as a power of two.
    pub(crate) fn segments(&self) -> (usize, u32) {
        let bits = (self.max_bytes / SEGMENT_BYTES).max(1).ilog2();
        let bits = bits.clamp(*SEGMENT_BITS.start(), *SEGMENT_BITS.end());
        (1 << bits, bits)
    }
}

/// The budget does not hold an empty index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall {
    /// Bytes that it needs at least.
    pub least: usize,
}

impl std::fmt::Display for TooSmall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an index for so many workers needs at least {} bytes", self.least)
    }
}

impl std::error::Error for TooSmall {}
