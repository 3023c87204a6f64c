//! Ids and units of the domain. Each is a newtype, so that tokens, blocks and milliseconds cannot be mixed up.

use std::time::Duration;

/// A point in time: the duration since some fixed start, given by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub Duration);

impl Time {
    /// `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// Time since `earlier`; zero when that is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tokens(pub u64);

/// A number of KV blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Blocks(pub u32);

/// Tokens per KV block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize(pub u32);

impl BlockSize {
    /// Blocks that `tokens` touch, a partial last one included.
    pub fn covering(self, tokens: Tokens) -> Blocks {
        let blocks = tokens.0.div_ceil(u64::from(self.0.max(1)));
        Blocks(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    /// Blocks that `tokens` fill.
    pub fn full(self, tokens: Tokens) -> Blocks {
        let blocks = tokens.0 / u64::from(self.0.max(1));
        Blocks(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    /// Tokens in `blocks` full blocks.
    pub fn tokens(self, blocks: Blocks) -> Tokens {
        Tokens(u64::from(self.0) * u64::from(blocks.0))
    }
}

/// A cost or an expected time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Millis(pub f64);

impl Millis {
    /// As a duration; what is negative or not a number is zero.
    pub fn duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0 / 1e3).unwrap_or_default()
    }
}

/// Booked compute time in whole microseconds: sums of it come back to exactly zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Micros(pub u64);

impl From<Millis> for Micros {
    fn from(time: Millis) -> Self {
        // Float to integer casts saturate, and take what is not a number for 0.
        Self((time.0 * 1e3).round() as u64)
    }
}

impl From<Duration> for Millis {
    fn from(time: Duration) -> Self {
        Self(time.as_secs_f64() * 1e3)
    }
}

impl From<Micros> for Millis {
    fn from(time: Micros) -> Self {
        Self(time.0 as f64 / 1e3)
    }
}

/// Sequence hash of a full block: it names the block and, being chained, everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash(pub u64);

/// Where a block lies. The numbers are the wire's and part of the set digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// The engine's own pool.
    Device = 1,
    /// Host memory.
    Host = 2,
    /// Local disk.
    Disk = 3,
    /// Object store.
    Object = 4,
}

impl Tier {
    /// Every tier.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::Disk, Self::Object];
}

/// The tiers in which one rank has one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierSet(u8);

impl TierSet {
    /// Adds a tier; false when it was there.
    pub fn insert(&mut self, tier: Tier) -> bool {
        let before = self.0;
        self.0 |= 1 << tier as u8;
        self.0 != before
    }

    /// Takes a tier out; false when it was not there.
    pub fn remove(&mut self, tier: Tier) -> bool {
        let before = self.0;
        self.0 &= !(1 << tier as u8);
        self.0 != before
    }

    /// Whether the tier is in.
    pub fn contains(self, tier: Tier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// Whether no tier is in.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The tiers in it.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |tier| self.contains(*tier))
    }
}

/// Which of a request's two workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Leads the request and streams its tokens.
    Decode,
    /// Computes the prompt for the decode worker.
    Prefill,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_tokens_convert_by_the_block_size() {
        let size = BlockSize(16);
        assert_eq!(size.covering(Tokens(17)), Blocks(2));
        assert_eq!(size.full(Tokens(31)), Blocks(1));
        assert_eq!(size.tokens(Blocks(3)), Tokens(48));
    }

    #[test]
    fn work_is_never_negative_or_undefined() {
        assert_eq!(Micros::from(Millis(f64::NAN)), Micros(0));
        assert_eq!(Micros::from(Millis(-3.0)), Micros(0));
        assert_eq!(Micros::from(Millis(1.5)), Micros(1500));
        assert_eq!(Millis(f64::INFINITY).duration(), Duration::ZERO);
    }

    #[test]
    fn a_tier_set_is_a_set() {
        let mut set = TierSet::default();
        assert!(set.insert(Tier::Host) && set.insert(Tier::Device) && !set.insert(Tier::Host));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Tier::Device, Tier::Host]);
        assert!(set.remove(Tier::Host) && !set.remove(Tier::Host) && !set.is_empty());
    }
}
