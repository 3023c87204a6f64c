//! Ids that were announced gone and must not come back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::instance::{InstanceId, LeaseEpoch};
use super::time::Moment;

/// Fences of ids that are gone, each kept for a fixed time; bounded by count, the oldest makes room.
#[derive(Debug)]
pub struct Tombstones {
    keep: Duration,
    limit: usize,
    by_id: BTreeMap<InstanceId, Tombstone>,
    by_age: BTreeSet<(Moment, InstanceId)>,
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tombstone {
    epoch: LeaseEpoch,
    until: Moment,
}

impl Tombstones {
    /// Keeps each id for `keep` and at most `limit` of them.
    pub fn new(keep: Duration, limit: usize) -> Self {
        Self { keep, limit, by_id: BTreeMap::new(), by_age: BTreeSet::new(), dropped: 0 }
    }

    /// Fences an id. An id that is fenced already keeps its time and takes the higher epoch.
    pub fn fence(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) {
        self.fence_for(id, epoch, self.keep, now);
    }

    /// Fences an id for what another replica says is left of its time. One that is older than all that fill the room is not taken.
    pub fn fence_for(&mut self, id: InstanceId, epoch: LeaseEpoch, left: Duration, now: Moment) {
        self.expire(now);
        if let Some(known) = self.by_id.get_mut(&id) {
            known.epoch = known.epoch.max(epoch);
            return;
        }
        let until = now + left.min(self.keep);
        while self.by_id.len() >= self.limit.max(1) {
            let oldest = self.by_age.first().copied();
            let Some((_, oldest)) = oldest.filter(|(oldest, _)| *oldest <= until) else { return };
            self.by_age.pop_first();
            self.by_id.remove(&oldest);
            self.dropped += 1;
        }
        self.by_id.insert(id, Tombstone { epoch, until });
        self.by_age.insert((until, id));
    }

    /// Whether an id is fenced.
    pub fn holds(&self, id: InstanceId, now: Moment) -> bool {
        self.by_id.get(&id).is_some_and(|tombstone| now < tombstone.until)
    }

    /// The epoch that a fenced id was gone at, and what is left of its time.
    pub fn get(&self, id: InstanceId, now: Moment) -> Option<(LeaseEpoch, Duration)> {
        let tombstone = self.by_id.get(&id).filter(|tombstone| now < tombstone.until)?;
        Some((tombstone.epoch, tombstone.until.since(now)))
    }

    /// Every fenced id with the epoch it was gone at.
    pub fn iter(&self) -> impl Iterator<Item = (InstanceId, LeaseEpoch)> + '_ {
        self.by_id.iter().map(|(id, tombstone)| (*id, tombstone.epoch))
    }

    /// Drops those whose time is up.
    pub fn expire(&mut self, now: Moment) {
        while let Some((_, id)) = self.by_age.first().filter(|(until, _)| *until <= now) {
            self.by_id.remove(id);
            self.by_age.pop_first();
        }
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// How many had to make room before their time.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn a_fence_holds_for_its_time_and_not_longer() {
        let mut tombstones = Tombstones::new(KEEP, 10);
        tombstones.fence(InstanceId(1), LeaseEpoch(1), at(0));
        tombstones.fence(InstanceId(1), LeaseEpoch(3), at(599));
        assert!(tombstones.holds(InstanceId(1), at(599)));
        assert_eq!(tombstones.iter().collect::<Vec<_>>(), [(InstanceId(1), LeaseEpoch(3))]);
        assert!(!tombstones.holds(InstanceId(1), at(600)));
        tombstones.expire(at(600));
        assert!(tombstones.is_empty());
    }

    #[test]
    fn what_others_fenced_keeps_its_time_and_does_not_displace_what_is_newer() {
        let mut tombstones = Tombstones::new(KEEP, 2);
        tombstones.fence(InstanceId(1), LeaseEpoch(1), at(100));
        tombstones.fence_for(InstanceId(2), LeaseEpoch(2), Duration::from_secs(10), at(100));
        assert_eq!(tombstones.get(InstanceId(2), at(109)), Some((LeaseEpoch(2), Duration::from_secs(1))));
        tombstones.fence_for(InstanceId(3), LeaseEpoch(1), Duration::from_secs(5), at(100));
        assert!(!tombstones.holds(InstanceId(3), at(100)), "older than both");
        tombstones.fence_for(InstanceId(4), LeaseEpoch(1), Duration::from_secs(20), at(100));
        assert!(!tombstones.holds(InstanceId(2), at(100)) && tombstones.holds(InstanceId(4), at(119)));
        assert!(!tombstones.holds(InstanceId(4), at(120)));
        tombstones.fence_for(InstanceId(5), LeaseEpoch(1), KEEP * 2, at(650));
        assert!(!tombstones.holds(InstanceId(5), at(1250)), "no longer than one's own");
    }

    #[test]
    fn the_oldest_makes_room_and_is_counted() {
        let mut tombstones = Tombstones::new(KEEP, 2);
        for id in 1..=3 {
            tombstones.fence(InstanceId(id), LeaseEpoch(1), at(id));
        }
        assert!(!tombstones.holds(InstanceId(1), at(3)));
        assert!(tombstones.holds(InstanceId(2), at(3)) && tombstones.holds(InstanceId(3), at(3)));
        assert_eq!((tombstones.len(), tombstones.dropped()), (2, 1));
    }
}
