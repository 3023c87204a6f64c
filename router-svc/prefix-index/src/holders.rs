//! Who has a block, in 22 bits: one worker by itself, or the number of an interned set.

/// Most workers that an index can number.
pub const MAX_WORKERS: usize = 1 << 15;

/// A worker's number in this index, without its generation.
pub(crate) type Slot = u16;

/// A worker and the tiers in which it has a block: `slot * 16 + one bit per tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member(pub(crate) u32);

/// Nobody (0), one member (the uppermost bit is set), or a set (its number, from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holders(pub(crate) u32);

impl Member {
    pub(crate) fn new(slot: Slot, tiers: u32) -> Self {
        Self(u32::from(slot) << 4 | tiers)
    }

    pub(crate) fn slot(self) -> Slot {
        (self.0 >> 4) as Slot
    }

    pub(crate) fn tiers(self) -> u32 {
        self.0 & 15
    }
}

impl Holders {
    /// Bits of it.
    pub(crate) const BITS: u32 = 22;
    pub(crate) const NOBODY: Self = Self(0);
    const ONE: u32 = 1 << (Self::BITS - 1);
    /// Sets that can be told apart.
    pub(crate) const MAX_SETS: usize = (1 << (Self::BITS - 1)) - 1;

    #[inline]
    pub(crate) fn one(member: Member) -> Self {
        Self(Self::ONE | member.0)
    }

    /// The set of this index, from 0.
    pub(crate) fn set(index: u32) -> Self {
        Self(index + 1)
    }

    /// The member, when there is just one.
    #[inline]
    pub(crate) fn as_one(self) -> Option<Member> {
        (self.0 & Self::ONE != 0).then_some(Member(self.0 & !Self::ONE))
    }

    /// The index of the set, when it is one.
    #[inline]
    pub(crate) fn as_set(self) -> Option<u32> {
        (self.0 != 0 && self.0 & Self::ONE == 0).then(|| self.0 - 1)
    }
}
