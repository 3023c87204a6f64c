//! What a block is worth: who is forgotten first when memory runs out.
//!
//! A value is a number of 16 bits, `warmth * 2^13 + shallowness`. Warmth is 7 after a router hit, 3 when stored, and falls by one with every
//! round of forgetting. A block is never warmer than its parent (a hit warms the whole prefix, a stored block at most inherits), and
//! always deeper: so in a chain values fall strictly from the root on, and forgetting the least valuable takes chains from their tails.
//! Beyond depth 4,095 depths are told apart to 32 blocks.

/// What a block is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Value(pub(crate) u16);

const DEPTH_BITS: u32 = 13;
const DEEPEST: u16 = (1 << DEPTH_BITS) - 1;
/// Depths up to here are exact.
const EXACT: u32 = 4_096;
const WARMTH_STORED: u16 = 3;
const WARMTH_HIT: u16 = 7;

impl Value {
    /// Of a block whose depth nobody has said: worth least.
    pub(crate) const UNKNOWN: Self = Self(0);

    fn new(warmth: u16, depth: u32) -> Self {
        let rank = if depth < EXACT { depth } else { EXACT + (depth - EXACT) / 32 };
        let rank = u16::try_from(rank).map_or(DEEPEST - 1, |rank| rank.min(DEEPEST - 1));
        Self(warmth << DEPTH_BITS | (DEEPEST - rank))
    }

    fn warmth(self) -> u16 {
        self.0 >> DEPTH_BITS
    }

    /// Of a block that was just stored at a depth (0: the first of a sequence), below a parent of this value if it has one.
    pub(crate) fn stored(depth: u32, parent: Option<Self>) -> Self {
        Self::new(parent.map_or(WARMTH_STORED, |parent| parent.warmth().min(WARMTH_STORED)), depth)
    }

    /// Of a block that a request has hit.
    pub(crate) fn hit(depth: u32) -> Self {
        Self::new(WARMTH_HIT, depth)
    }

    /// The depth; a least one where it is not exact, none when it is not known.
    pub(crate) fn depth(self) -> Option<u32> {
        let shallowness = self.0 & DEEPEST;
        let rank = u32::from(DEEPEST - shallowness);
        let depth = if rank < EXACT { rank } else { EXACT + (rank - EXACT) * 32 };
        (shallowness > 0).then_some(depth)
    }

    /// One round of forgetting later.
    pub(crate) fn aged(self) -> Self {
        Self(if self.warmth() > 0 { self.0 - (1 << DEPTH_BITS) } else { self.0 })
    }

    /// Order of forgetting, lowest first; equals are told apart by their tags.
    pub(crate) fn key(self, tag: u64) -> u32 {
        u32::from(self.0) << 16 | (tag & 0xffff) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_along_a_chain_and_stay_in_order() {
        let mut before = Value::stored(0, None);
        for depth in 1..4_096 {
            let child = Value::stored(depth, Some(before));
            assert!(child < before && child.depth() == Some(depth));
            assert!(Value::hit(depth) > child && Value::hit(depth) < Value::hit(depth - 1));
            assert!(child.aged() < before.aged() && before.aged().aged().aged().aged() > Value::UNKNOWN);
            before = child;
        }
        assert_eq!(Value::stored(u32::MAX, None).depth().map(|depth| depth > 100_000), Some(true));
        assert_eq!(Value::UNKNOWN.depth(), None);
        assert!(Value::stored(u32::MAX, Some(Value::UNKNOWN)) > Value::UNKNOWN);
    }

    #[test]
    fn a_child_of_what_went_cold_is_cold() {
        let parent = (0..3).fold(Value::stored(4, None), |value, _| value.aged());
        let child = Value::stored(5, Some(parent));
        assert!(child < parent && child.warmth() == 0 && Value::hit(5).warmth() == WARMTH_HIT);
    }
}
