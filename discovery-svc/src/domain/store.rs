//! What a backend keeps for all replicas: instances with their leases, tombstones, cards, artifacts, leaders.
//!
//! The memory and file backends keep one [`Store`]. A shared backend keeps one per replica, which is the truth for the leases held through
//! it, and merges what the others have written ([`elsewhere`]). A lease that runs out leaves its instance in place, unleased: only a
//! deregistration, a verdict of the replica that held the lease, or the need for room takes an instance away.

pub mod elsewhere;
mod refusal;

pub use refusal::{ChangeError, RegisterError};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use self::elsewhere::Elsewhere;
use super::blobs::{Blobs, NoRoom};
use super::instance::{CardFacts, Digest, Instance, InstanceId, LeaseEpoch, ReplicaId, Status};
use super::leaders::{Leaders, Leadership, Term, TooManyNames};
use super::time::Moment;
use super::tombstones::Tombstones;

/// The bounds of a store and its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A lease that its replica has not renewed for so long has run out.
    pub ttl: Duration,
    /// How long an id that is gone is fenced.
    pub tombstone_ttl: Duration,
    /// Instances, static ones included.
    pub instances: usize,
    /// Bytes of all instances; a snapshot of them has to fit one message.
    pub instance_bytes: usize,
    /// Fenced ids.
    pub tombstones: usize,
    /// Names with a leader.
    pub leaders: usize,
    /// Bytes of all cards.
    pub card_bytes: usize,
    /// Bytes of all artifacts.
    pub artifact_bytes: usize,
}

/// Something happened to what a backend keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The whole state: first, and after any doubt.
    Snapshot {
        /// Every instance and whether it is leased.
        instances: Vec<(Arc<Instance>, bool)>,
        /// Every fenced id with the epoch it was gone at.
        gone: Vec<(InstanceId, LeaseEpoch)>,
    },
    /// An instance is new or different.
    Put {
        /// As it published itself.
        instance: Arc<Instance>,
        /// Whether some replica holds its lease.
        leased: bool,
    },
    /// An instance is gone.
    Gone {
        /// Which.
        id: InstanceId,
        /// Yields to a higher one.
        epoch: LeaseEpoch,
    },
    /// The backend does not answer; a snapshot will say when it does again.
    Unreachable,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Fenced ids.
    pub tombstones: usize,
    /// Fenced ids that had to make room before their time.
    pub tombstones_dropped: u64,
    /// Names with a leader.
    pub leaders: usize,
    /// Bytes of all cards.
    pub card_bytes: usize,
    /// Bytes of all artifacts.
    pub artifact_bytes: usize,
    /// Bytes of all instances.
    pub instance_bytes: usize,
}

#[derive(Debug)]
struct Record {
    instance: Arc<Instance>,
    facts: Option<Arc<CardFacts>>,
    lease: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Held { by: ReplicaId, until: Moment },
    Lapsed { by: ReplicaId, since: Moment },
    Static,
    Elsewhere(Elsewhere),
}

impl Record {
    /// About what an instance takes in a message, in bytes.
    fn size(&self) -> usize {
        size(&self.instance)
    }

    fn leased(&self) -> bool {
        self.unleased_since().is_none()
    }

    fn unleased_since(&self) -> Option<Moment> {
        match self.lease {
            Lease::Held { .. } | Lease::Static => None,
            Lease::Lapsed { since, .. } => Some(since),
            Lease::Elsewhere(elsewhere) => elsewhere.unleased_since(),
        }
    }
}

fn size(instance: &Instance) -> usize {
    // Tags, lengths, ids, the digest of the card.
    const FIXED: usize = 96;
    const PER_ENTRY: usize = 8;
    let entries = instance.addresses.iter().chain(&instance.labels);
    let entries: usize = entries.map(|(name, value)| PER_ENTRY + name.len() + value.len()).sum();
    FIXED + entries + instance.namespace.0.len() + instance.boot_id.len()
}

/// See the module.
#[derive(Debug)]
pub struct Store {
    limits: Limits,
    base: u64,
    records: BTreeMap<InstanceId, Record>,
    tombstones: Tombstones,
    leaders: Leaders,
    cards: Blobs<Arc<CardFacts>>,
    artifacts: Blobs<()>,
    changes: Vec<Change>,
}

impl Store {
    /// An empty store. Lease epochs and terms are greater than `base`; the wall clock (as any unit since its epoch) makes them grow over
    /// restarts.
    pub fn new(limits: Limits, base: u64) -> Self {
        Self {
            limits,
            base,
            records: BTreeMap::new(),
            tombstones: Tombstones::new(limits.tombstone_ttl, limits.tombstones),
            leaders: Leaders::new(limits.leaders, base),
            cards: Blobs::new(limits.card_bytes),
            artifacts: Blobs::new(limits.artifact_bytes),
            changes: Vec::new(),
        }
    }

    /// What happened since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The whole state.
    pub fn snapshot(&self) -> Change {
        Change::Snapshot {
            instances: self
                .records
                .values()
                .map(|record| (record.instance.clone(), record.leased()))
                .collect(),
            gone: self.tombstones.iter().collect(),
        }
    }

    /// Opens or takes over the lease of an instance. The epoch stays when `replica` holds the lease already and grows otherwise; it is
    /// always greater than the one the instance names.
    pub fn register(
        &mut self,
        mut instance: Instance,
        replica: ReplicaId,
        now: Moment,
    ) -> Result<LeaseEpoch, RegisterError> {
        self.expire(now);
        let id = instance.id;
        if self.tombstones.holds(id, now) {
            return Err(RegisterError::Fenced(id));
        }
        let known = self.records.get(&id).map(|record| (record.lease, record.instance.epoch));
        if let Some((Lease::Static, _)) = known {
            return Err(RegisterError::Static(id));
        }
        let facts = self.facts(&instance)?;
        self.make_room(&instance)?;
        instance.epoch = match known {
            Some((Lease::Held { by, .. }, epoch)) if by == replica => epoch,
            known => {
                let before = known.map_or(self.base, |(_, epoch)| epoch.0);
                LeaseEpoch(before.max(self.base).max(instance.epoch.0).saturating_add(1))
            }
        };
        let epoch = instance.epoch;
        self.keep(instance, facts, Lease::Held { by: replica, until: now + self.limits.ttl });
        Ok(epoch)
    }

    /// Renews leases of `replica`; answers those that it does not hold (any more).
    pub fn renew(
        &mut self,
        replica: ReplicaId,
        leases: &[(InstanceId, LeaseEpoch)],
        now: Moment,
    ) -> Vec<InstanceId> {
        self.expire(now);
        let until = now + self.limits.ttl;
        let mut unknown = Vec::new();
        for (id, epoch) in leases {
            match self.records.get_mut(id) {
                Some(Record { lease: Lease::Held { by, until: end }, instance, .. })
                    if *by == replica && instance.epoch == *epoch =>
                {
                    *end = until;
                }
                _ => unknown.push(*id),
            }
        }
        unknown
    }

    /// Publishes a status.
    pub fn set_status(&mut self, id: InstanceId, status: Status, now: Moment) -> Result<(), ChangeError> {
        self.expire(now);
        if self.tombstones.holds(id, now) {
            return Err(ChangeError::Fenced(id));
        }
        let record = self.records.get_mut(&id).ok_or(ChangeError::Unknown(id))?;
        match record.lease {
            Lease::Static => return Err(ChangeError::Static(id)),
            Lease::Elsewhere(_) => return Err(ChangeError::Elsewhere(id)),
            Lease::Held { .. } | Lease::Lapsed { .. } => {}
        }
        if record.instance.status != status {
            Arc::make_mut(&mut record.instance).status = status;
            self.changes.push(Change::Put { instance: record.instance.clone(), leased: record.leased() });
        }
        Ok(())
    }

    /// An instance said that it is gone. Its id is fenced whether it was known or not.
    pub fn deregister(&mut self, id: InstanceId, now: Moment) -> Result<(), ChangeError> {
        self.expire(now);
        let epoch = match self.records.get(&id) {
            Some(record) if record.lease == Lease::Static => return Err(ChangeError::Static(id)),
            Some(record) => record.instance.epoch,
            None => LeaseEpoch(self.base),
        };
        self.remove(id, epoch, now);
        Ok(())
    }

    /// The replica that held the lease `epoch` judged the instance lost. Without effect once there is a higher epoch.
    pub fn bury(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) {
        self.expire(now);
        let same = |record: &Record| record.instance.epoch == epoch && record.lease != Lease::Static;
        if self.records.get(&id).is_some_and(same) {
            self.remove(id, epoch, now);
        }
    }

    /// The replica that held the lease `epoch` doubts the instance: it stays, unleased. Without effect once there is a higher epoch.
    pub fn release(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) {
        self.expire(now);
        if let Some(record) = self.records.get_mut(&id)
            && record.instance.epoch == epoch
            && let Lease::Held { by, .. } = record.lease
        {
            record.lease = Lease::Lapsed { by, since: now };
            self.changes.push(Change::Put { instance: record.instance.clone(), leased: false });
        }
    }

    /// Replaces the instances that have no lease because a file lists them; their cards must be stored.
    pub fn set_static(&mut self, instances: Vec<Instance>) -> Result<(), RegisterError> {
        let listed: BTreeSet<InstanceId> = instances.iter().map(|instance| instance.id).collect();
        let others: Vec<usize> = self
            .records
            .iter()
            .filter(|(id, record)| record.lease != Lease::Static && !listed.contains(id))
            .map(|(_, record)| record.size())
            .collect();
        let bytes = others.iter().sum::<usize>() + instances.iter().map(size).sum::<usize>();
        self.within_limits(others.len() + listed.len(), bytes)?;
        let mut checked = Vec::with_capacity(instances.len());
        for instance in instances {
            let facts = instance.card.map(|digest| self.card_facts(&digest)).transpose()?;
            checked.push((instance, facts));
        }
        let removed: Vec<(InstanceId, LeaseEpoch)> = self
            .records
            .iter()
            .filter(|(id, record)| record.lease == Lease::Static && !listed.contains(id))
            .map(|(id, record)| (*id, record.instance.epoch))
            .collect();
        for (id, epoch) in removed {
            self.records.remove(&id);
            self.changes.push(Change::Gone { id, epoch });
        }
        // Each load takes a higher epoch for what it changes, so that an instance may be listed again after it was removed.
        self.base += 1;
        for (mut instance, facts) in checked {
            let known = self.records.get(&instance.id).map(|record| (record.lease, record.instance.clone()));
            instance.epoch = known.as_ref().map_or(LeaseEpoch(self.base), |(_, known)| known.epoch);
            match known {
                Some((Lease::Static, known)) if *known == instance => continue,
                Some((_, known)) => {
                    instance.epoch = LeaseEpoch(self.base.max(known.epoch.0.saturating_add(1)))
                }
                None => {}
            }
            self.keep(instance, facts, Lease::Static);
        }
        Ok(())
    }

    /// Keeps a verified card.
    pub fn put_card(&mut self, facts: CardFacts, content: Bytes) -> Result<(), NoRoom> {
        let shown = self.shown_cards();
        self.cards.put(facts.digest, content, Arc::new(facts), |digest| shown.contains(digest))
    }

    /// Cards that an instance shows: they do not make room.
    pub fn shown_cards(&self) -> BTreeSet<Digest> {
        self.records.values().filter_map(|record| record.instance.card).collect()
    }

    /// Artifacts that a shown card names: they do not make room.
    pub fn shown_artifacts(&self) -> BTreeSet<Digest> {
        let facts = self.records.values().filter_map(|record| record.facts.as_ref());
        facts.flat_map(|facts| facts.artifacts.iter().copied()).collect()
    }

    /// What is known of a card.
    pub fn facts_of(&self, digest: &Digest) -> Option<Arc<CardFacts>> {
        self.cards.value(digest).cloned()
    }

    /// The bytes of a card.
    pub fn card(&mut self, digest: &Digest) -> Option<Bytes> {
        self.cards.content(digest)
    }

    /// Keeps a verified artifact.
    pub fn put_artifact(&mut self, digest: Digest, content: Bytes) -> Result<(), NoRoom> {
        let shown = self.shown_artifacts();
        self.artifacts.put(digest, content, (), |digest| shown.contains(digest))
    }

    /// The bytes of an artifact.
    pub fn artifact(&mut self, digest: &Digest) -> Option<Bytes> {
        self.artifacts.content(digest)
    }

    /// Asks for or renews leadership of a name.
    pub fn campaign(
        &mut self,
        name: &str,
        candidate: InstanceId,
        ttl: Duration,
        now: Moment,
    ) -> Result<Leadership, TooManyNames> {
        self.leaders.campaign(name, candidate, ttl, now)
    }

    /// Gives leadership up.
    pub fn resign(&mut self, name: &str, candidate: InstanceId, term: Term) {
        self.leaders.resign(name, candidate, term);
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        Usage {
            tombstones: self.tombstones.len(),
            tombstones_dropped: self.tombstones.dropped(),
            leaders: self.leaders.len(),
            card_bytes: self.cards.used(),
            artifact_bytes: self.artifacts.used(),
            instance_bytes: self.records.values().map(Record::size).sum(),
        }
    }

    fn expire(&mut self, now: Moment) {
        self.tombstones.expire(now);
        for record in self.records.values_mut() {
            match &mut record.lease {
                Lease::Held { by, until } if *until <= now => {
                    record.lease = Lease::Lapsed { by: *by, since: now };
                }
                Lease::Elsewhere(elsewhere) => {
                    if !elsewhere.expires(now) {
                        continue;
                    }
                }
                _ => continue,
            }
            self.changes.push(Change::Put { instance: record.instance.clone(), leased: false });
        }
    }

    fn card_facts(&self, digest: &Digest) -> Result<Arc<CardFacts>, RegisterError> {
        self.facts_of(digest).ok_or(RegisterError::CardUnknown(*digest))
    }

    fn facts(&self, instance: &Instance) -> Result<Option<Arc<CardFacts>>, RegisterError> {
        let Some(digest) = &instance.card else { return Ok(None) };
        let facts = self.card_facts(digest)?;
        // Unleased instances do not count: a fleet that died with one block size must not forbid its successor another.
        let others = self.records.values().filter(|other| {
            other.leased()
                && other.instance.id != instance.id
                && other.instance.namespace == instance.namespace
        });
        for other in others.filter_map(|other| other.facts.as_ref()) {
            if other.kv_identity == facts.kv_identity && other.block_size != facts.block_size {
                return Err(RegisterError::BlockSizeMismatch {
                    asked: facts.block_size,
                    present: other.block_size,
                });
            }
        }
        Ok(Some(facts))
    }

    /// Instances that have been unleased for longest make room, unfenced: they may come back.
    fn make_room(&mut self, instance: &Instance) -> Result<(), RegisterError> {
        loop {
            let others = self.records.iter().filter(|(id, _)| **id != instance.id);
            let (count, bytes) =
                others.fold((1, size(instance)), |(n, sum), (_, it)| (n + 1, sum + it.size()));
            let Err(full) = self.within_limits(count, bytes) else { return Ok(()) };
            let lapsed =
                self.records.iter().filter(|(id, _)| **id != instance.id).filter_map(|(id, record)| {
                    record.unleased_since().map(|since| (since, *id, record.instance.epoch))
                });
            let (_, id, epoch) = lapsed.min().ok_or(full)?;
            self.records.remove(&id);
            self.changes.push(Change::Gone { id, epoch });
        }
    }

    fn within_limits(&self, instances: usize, bytes: usize) -> Result<(), RegisterError> {
        let Limits { instances: most, instance_bytes, .. } = self.limits;
        if instances > most {
            return Err(RegisterError::Full { key: "limits.instances", limit: most });
        }
        if bytes > instance_bytes {
            return Err(RegisterError::Full { key: "limits.instance_bytes", limit: instance_bytes });
        }
        Ok(())
    }

    fn keep(&mut self, instance: Instance, facts: Option<Arc<CardFacts>>, lease: Lease) {
        let record = Record { instance: Arc::new(instance), facts, lease };
        let put = Change::Put { instance: record.instance.clone(), leased: record.leased() };
        let id = record.instance.id;
        let same = |old: &Record| old.instance == record.instance && old.leased() == record.leased();
        if !self.records.get(&id).is_some_and(same) {
            self.changes.push(put);
        }
        self.records.insert(id, record);
    }

    fn remove(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) {
        let known = self.records.remove(&id).is_some();
        let fenced = self.tombstones.holds(id, now);
        self.tombstones.fence(id, epoch, now);
        if known || !fenced {
            self.changes.push(Change::Gone { id, epoch });
        }
    }
}
