//! What other replicas of a shared backend have written, merged into this replica's store.
//!
//! ```text
//! an entry wins over what is known of its id when its epoch is higher; at equal epochs the holder's own word is the last, and of two
//! holders the greater id. The loser's lease is not its own any more: its instance registers again.
//! elsewhere: leased --the entry says so--> unleased
//!            leased --no such entry for one ttl--> unleased     (the shared backend was emptied, or is behind)
//!            any    --fenced at this epoch or a higher one--> gone
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Change, Lease, Store};
use crate::domain::instance::{CardFacts, Component, Instance, InstanceId, LeaseEpoch, ReplicaId};
use crate::domain::time::Moment;

/// An instance as a replica has written it into the shared backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// With the epoch of its lease.
    pub instance: Instance,
    /// Of its card.
    pub facts: Option<CardFacts>,
    /// Which replica wrote it.
    pub holder: ReplicaId,
    /// Whether its lease is being renewed.
    pub leased: bool,
}

/// What the shared backend has to show on behalf of this replica.
#[derive(Clone, Debug)]
pub struct Own {
    /// With the epoch of its lease.
    pub instance: Arc<Instance>,
    /// Of its card.
    pub facts: Option<Arc<CardFacts>>,
    /// Which replica has or had the lease.
    pub holder: ReplicaId,
    /// Whether it still has it.
    pub leased: bool,
}

/// A lease that another replica has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    holder: ReplicaId,
    unleased: Option<Moment>,
    /// When it is taken for unleased, once its entry has vanished.
    doubted: Option<Moment>,
}

impl Elsewhere {
    pub(super) fn unleased_since(&self) -> Option<Moment> {
        self.unleased
    }

    /// Whether it has become unleased by now.
    pub(super) fn expires(&mut self, now: Moment) -> bool {
        let expires = self.unleased.is_none() && self.doubted.is_some_and(|until| until <= now);
        if expires {
            self.unleased = Some(now);
        }
        expires
    }
}

impl Store {
    /// Takes in every entry that the shared backend has of a component.
    pub fn observe(&mut self, component: Component, entries: Vec<Entry>, now: Moment) {
        self.expire(now);
        let mut latest: BTreeMap<InstanceId, Entry> = BTreeMap::new();
        let rank = |it: &Entry| (it.instance.epoch, it.holder);
        for entry in entries {
            let known = latest.get(&entry.instance.id);
            if known.is_none_or(|known| rank(known) < rank(&entry)) {
                latest.insert(entry.instance.id, entry);
            }
        }
        let doubted = now + self.limits.ttl;
        for (id, record) in &mut self.records {
            if let Lease::Elsewhere(elsewhere) = &mut record.lease
                && record.instance.component == component
                && latest.get(id).is_none_or(|it| it.instance.epoch < record.instance.epoch)
            {
                elsewhere.doubted.get_or_insert(doubted);
            }
        }
        for entry in latest.into_values().filter(|entry| entry.instance.component == component) {
            self.merge(entry, now);
        }
    }

    fn merge(&mut self, entry: Entry, now: Moment) {
        let (id, epoch) = (entry.instance.id, entry.instance.epoch);
        if self.tombstones.get(id, now).is_some_and(|(gone, _)| gone >= epoch) {
            return;
        }
        let known = self.records.get(&id).map(|record| (record.instance.epoch, record.lease));
        let mut unleased = (!entry.leased).then_some(now);
        if let Some((known, lease)) = known {
            match lease {
                Lease::Static => return,
                _ if known > epoch => return,
                Lease::Held { by, .. } | Lease::Lapsed { by, .. } if known == epoch && entry.holder <= by => {
                    return;
                }
                Lease::Elsewhere(before) if known == epoch && !entry.leased => {
                    unleased = before.unleased.or(unleased);
                }
                Lease::Held { .. } | Lease::Lapsed { .. } | Lease::Elsewhere(_) => {}
            }
        } else if self.make_room(&entry.instance).is_err() {
            return;
        }
        let lease = Lease::Elsewhere(Elsewhere { holder: entry.holder, unleased, doubted: None });
        self.keep(entry.instance, entry.facts.map(Arc::new), lease);
    }

    /// Takes in ids that another replica has fenced: at which epoch, and what is left of the time.
    pub fn observe_gone(&mut self, gone: &[(InstanceId, LeaseEpoch, Duration)], now: Moment) {
        self.expire(now);
        for (id, epoch, left) in gone.iter().filter(|(_, _, left)| !left.is_zero()) {
            let known = self.records.get(id).map(|known| (known.instance.epoch, known.lease));
            if matches!(known, Some((_, Lease::Static))) {
                continue;
            }
            let fenced = self.tombstones.holds(*id, now);
            self.tombstones.fence_for(*id, *epoch, *left, now);
            let buried = known.is_some_and(|(known, _)| known <= *epoch);
            if buried {
                self.records.remove(id);
            }
            if buried || (!fenced && known.is_none() && self.tombstones.holds(*id, now)) {
                self.changes.push(Change::Gone { id: *id, epoch: *epoch });
            }
        }
    }

    /// What the shared backend has to show of an instance on behalf of this replica, if anything.
    pub fn own(&self, id: InstanceId) -> Option<Own> {
        let record = self.records.get(&id)?;
        let (holder, leased) = match record.lease {
            Lease::Held { by, .. } => (by, true),
            Lease::Lapsed { by, .. } => (by, false),
            Lease::Static | Lease::Elsewhere(_) => return None,
        };
        Some(Own { instance: record.instance.clone(), facts: record.facts.clone(), holder, leased })
    }

    /// Whether an entry that `holder` has written is of no use to anybody any more: its id is gone, or another entry has won over it.
    pub fn obsolete(&self, id: InstanceId, epoch: LeaseEpoch, holder: ReplicaId, now: Moment) -> bool {
        let gone = self.tombstones.get(id, now).is_some_and(|(gone, _)| gone >= epoch);
        let lost = self.records.get(&id).is_some_and(|record| match record.lease {
            Lease::Elsewhere(it) if record.instance.epoch == epoch => it.holder > holder,
            _ => record.instance.epoch > epoch,
        });
        gone || lost
    }

    /// Whether an instance is kept.
    pub fn knows(&self, id: InstanceId) -> bool {
        self.records.contains_key(&id)
    }

    /// The fence of an id: the epoch it was gone at, and what is left of its time.
    pub fn fence(&self, id: InstanceId, now: Moment) -> Option<(LeaseEpoch, Duration)> {
        self.tombstones.get(id, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::instance::{Namespace, Status};
    use crate::domain::store::Limits;

    const TTL: Duration = Duration::from_secs(30);
    const ID: InstanceId = InstanceId(1);

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn store() -> Store {
        let limits = Limits {
            ttl: TTL,
            tombstone_ttl: Duration::from_secs(600),
            instances: 10,
            instance_bytes: 10_000,
            tombstones: 10,
            leaders: 1,
            card_bytes: 1,
            artifact_bytes: 1,
        };
        Store::new(limits, 0)
    }

    fn entry(epoch: u64, holder: u64, leased: bool) -> Entry {
        let instance = Instance {
            id: ID,
            namespace: Namespace::default(),
            component: Component::Router,
            addresses: BTreeMap::new(),
            card: None,
            status: Status::Ready,
            epoch: LeaseEpoch(epoch),
            labels: BTreeMap::new(),
            boot_id: String::new(),
        };
        Entry { instance, facts: None, holder: ReplicaId(holder), leased }
    }

    /// The epoch that is kept, and whether it is leased.
    fn kept(store: &Store) -> Option<(u64, bool)> {
        store.records.get(&ID).map(|record| (record.instance.epoch.0, record.leased()))
    }

    #[test]
    fn a_vanished_entry_is_believed_for_one_ttl_whatever_older_one_is_left() {
        for left in [vec![], vec![entry(1, 1, true)]] {
            let mut store = store();
            store.observe(Component::Router, vec![entry(1, 1, true), entry(2, 2, true)], at(0));
            assert_eq!(kept(&store), Some((2, true)), "the highest epoch wins");
            store.observe(Component::Router, left.clone(), at(1));
            store.observe(Component::Router, left.clone(), at(30));
            assert_eq!(kept(&store), Some((2, true)));
            store.observe(Component::Router, left, at(31));
            assert_eq!(kept(&store), Some((2, false)), "doubt keeps it");
            store.observe(Component::Router, vec![entry(2, 2, true)], at(99));
            assert_eq!(kept(&store), Some((2, true)), "back");
        }
    }

    #[test]
    fn a_fence_buries_what_is_not_newer() {
        for (epoch, left) in [(1, None), (2, None), (3, Some((3, true)))] {
            let mut store = store();
            store.observe(Component::Router, vec![entry(epoch, 1, true)], at(0));
            store.observe_gone(&[(ID, LeaseEpoch(2), Duration::from_secs(9))], at(0));
            assert_eq!(kept(&store), left);
            store.observe(Component::Router, vec![entry(epoch, 1, true)], at(8));
            assert_eq!(kept(&store), left, "nor does it come back");
        }
    }

    #[test]
    fn what_is_elsewhere_makes_room_only_when_it_is_unleased() {
        let mut store = store();
        store.limits.instances = 1;
        store.observe(Component::Router, vec![entry(1, 1, true)], at(0));
        let other = Instance { id: InstanceId(2), ..entry(0, 0, true).instance };
        assert!(store.register(other.clone(), ReplicaId(9), at(0)).is_err());
        store.observe(Component::Router, vec![entry(1, 1, false)], at(0));
        assert!(store.register(other, ReplicaId(9), at(0)).is_ok());
        assert_eq!(kept(&store), None);
    }
}
