//! The order in which idle leaves are evicted; O(log n).
//!
//! Two-segment: blocks never hit, and blocks hit at least once. The victim is the oldest block of the segment whose
//! oldest block has the larger `age / weight`, weights 1 (never hit) and 2 (hit). Scale-free. Plain LRU is one segment.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Eviction;
use crate::domain::ids::BlockId;
use crate::domain::time::Time;

/// How much longer a block that was hit may stay unused.
const HIT_WEIGHT: u128 = 2;

/// What decides a block's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    /// Whether another request than its maker has used the block.
    pub(super) hit: bool,
    /// Last use.
    pub(super) last_used: Time,
    /// Orders uses at the same time.
    pub(super) tick: u64,
}

type Segment = BTreeSet<(Time, u64, BlockId)>;

#[derive(Debug)]
pub(super) struct Victims {
    eviction: Eviction,
    never_hit: Segment,
    hit: Segment,
}

impl Victims {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self { eviction, never_hit: Segment::new(), hit: Segment::new() }
    }

    fn is_hot(&self, hit: bool) -> bool {
        hit && self.eviction == Eviction::TwoSegment
    }

    fn segment(&mut self, hit: bool) -> &mut Segment {
        if self.is_hot(hit) { &mut self.hit } else { &mut self.never_hit }
    }

    pub(super) fn len(&self) -> usize {
        self.never_hit.len() + self.hit.len()
    }

    pub(super) fn contains(&self, block: BlockId, age: Age) -> bool {
        let segment = if self.is_hot(age.hit) { &self.hit } else { &self.never_hit };
        segment.contains(&(age.last_used, age.tick, block))
    }

    pub(super) fn insert(&mut self, block: BlockId, age: Age) {
        self.segment(age.hit).insert((age.last_used, age.tick, block));
    }

    pub(super) fn remove(&mut self, block: BlockId, age: Age) {
        let was_there = self.segment(age.hit).remove(&(age.last_used, age.tick, block));
        debug_assert!(was_there, "a waiting leaf is in its segment");
    }

    /// Whether the next victim comes from the hit segment, and its last use.
    fn next(&self, now: Time) -> Option<(bool, Time)> {
        let oldest = |segment: &Segment| segment.first().map(|(last_used, ..)| *last_used);
        match (oldest(&self.never_hit), oldest(&self.hit)) {
            (None, None) => None,
            (Some(cold), None) => Some((false, cold)),
            (None, Some(hot)) => Some((true, hot)),
            (Some(cold), Some(hot)) => {
                let cold_age = now.since(cold).as_nanos() * HIT_WEIGHT;
                let hot_age = now.since(hot).as_nanos();
                Some(if hot_age > cold_age { (true, hot) } else { (false, cold) })
            }
        }
    }

    pub(super) fn next_age(&self, now: Time) -> Option<Duration> {
        self.next(now).map(|(_, last_used)| now.since(last_used))
    }

    pub(super) fn pop(&mut self, now: Time) -> Option<BlockId> {
        let (hit, _) = self.next(now)?;
        self.segment(hit).pop_first().map(|(_, _, block)| block)
    }
}
