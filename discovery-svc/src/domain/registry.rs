//! What one replica makes of the backend's state: the leases it keeps, whom it judges, what it shows.
//!
//! ```text
//! lease:  kept --last stream ends--> broken --grace--> judged: Lost, or Doubted when it would be a mass loss
//!         kept --silent for the ttl--> judged: Doubted
//!         broken --new stream--> kept
//!         any --put with a higher epoch, gone, unleased--> forgotten (another replica has it, or nobody)
//! shown:  leased --> as published;  unleased --> SUSPECT instead of READY;  gone --> not at all
//! ```
//!
//! Nothing is judged, and nothing shown as SUSPECT, while the backend is unreachable and for `recovery` after the start and after each
//! reconnect: in that time every living instance comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::guard::{Group, Guard, MassLoss};
use super::instance::{Instance, InstanceId, LeaseEpoch};
use super::store::Change;
use super::time::Moment;
use super::view::{Reading, Revision, Selector, View, ViewEpoch, Watcher};

/// Times and bounds of a registry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// From the end of an instance's last stream to its judgement.
    pub grace: Duration,
    /// A lease without a heartbeat for so long is doubted.
    pub ttl: Duration,
    /// No losses after the start and after a reconnect to the backend.
    pub recovery: Duration,
    /// When losses are a mass loss.
    pub mass_loss: MassLoss,
    /// Deltas kept for watchers.
    pub ring: usize,
    /// Instances kept.
    pub instances: usize,
}

/// The replica does not have this lease: the instance must register again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica does not have the lease of instance {0}: register again")]
pub struct LeaseUnknown(pub InstanceId);

/// What is to be told to the backend about an instance whose lease this replica held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Gone: its stream broke and did not come back.
    Lost(InstanceId, LeaseEpoch),
    /// Unleased, kept: silent, or part of a mass loss.
    Doubted(InstanceId, LeaseEpoch),
}

#[derive(Debug)]
struct Known {
    instance: Arc<Instance>,
    leased: bool,
    /// False once the backend came back without it.
    stored: bool,
}

#[derive(Debug)]
struct Lease {
    epoch: LeaseEpoch,
    group: Group,
    streams: usize,
    heard: Moment,
    broken: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Unreachable,
    Recovering { until: Moment },
    Clear,
}

/// See the module. Bounded by `Rules::instances` (and so are its leases) and the ring.
#[derive(Debug)]
pub struct Registry {
    rules: Rules,
    known: BTreeMap<InstanceId, Known>,
    leases: BTreeMap<InstanceId, Lease>,
    guard: Guard,
    sight: Sight,
    view: View,
}

impl Registry {
    /// A registry that has seen nothing yet, and is recovering from `now`.
    pub fn new(rules: Rules, epoch: ViewEpoch, first: Revision, now: Moment) -> Self {
        Self {
            rules,
            known: BTreeMap::new(),
            leases: BTreeMap::new(),
            guard: Guard::new(rules.mass_loss),
            sight: Sight::Recovering { until: now + rules.recovery },
            view: View::new(epoch, first, rules.ring),
        }
    }

    /// Takes in what happened in the backend.
    pub fn apply(&mut self, change: Change, now: Moment) {
        match change {
            Change::Put { instance, leased } => self.put(instance, leased),
            Change::Gone { id, epoch } => self.gone(id, epoch),
            Change::Unreachable => self.sight = Sight::Unreachable,
            Change::Snapshot { instances, gone } => {
                if self.sight == Sight::Unreachable {
                    self.sight = Sight::Recovering { until: now + self.rules.recovery };
                }
                for (id, epoch) in gone {
                    self.gone(id, epoch);
                }
                let mut absent: BTreeSet<InstanceId> = self.known.keys().copied().collect();
                for (instance, _) in &instances {
                    absent.remove(&instance.id);
                }
                for (instance, leased) in instances {
                    self.put(instance, leased);
                }
                // The backend was emptied, or we missed why they left: doubt keeps them. Their next heartbeat registers them again.
                for id in absent {
                    self.leases.remove(&id);
                    if let Some(known) = self.known.get_mut(&id) {
                        (known.leased, known.stored) = (false, false);
                    }
                    self.show(id);
                }
                self.make_room();
            }
        }
    }

    /// This replica holds the lease of `instance` now.
    pub fn leased(&mut self, instance: &Instance, epoch: LeaseEpoch, now: Moment) {
        if self.known.get(&instance.id).is_some_and(|known| known.instance.epoch > epoch) {
            return;
        }
        let group = Group::of(instance);
        let fresh = Lease { epoch, group, streams: 0, heard: now, broken: None };
        let lease = self.leases.entry(instance.id).or_insert(fresh);
        if lease.epoch != epoch {
            // Streams of the lease before end without a word about this one.
            (lease.epoch, lease.streams) = (epoch, 0);
        }
        lease.group = Group::of(instance);
        lease.heard = now;
        lease.broken = None;
    }

    /// A heartbeat on a new stream.
    pub fn attach(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) -> Result<(), LeaseUnknown> {
        let lease = self.lease(id, epoch)?;
        lease.streams += 1;
        lease.heard = now;
        lease.broken = None;
        Ok(())
    }

    /// A heartbeat on an attached stream.
    pub fn heartbeat(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) -> Result<(), LeaseUnknown> {
        self.lease(id, epoch)?.heard = now;
        Ok(())
    }

    /// An attached stream ended.
    pub fn detach(&mut self, id: InstanceId, epoch: LeaseEpoch, now: Moment) {
        if let Ok(lease) = self.lease(id, epoch) {
            lease.streams = lease.streams.saturating_sub(1);
            if lease.streams == 0 {
                lease.broken = Some(now);
            }
        }
    }

    /// Judges the leases whose time is up; they are not this replica's any more.
    pub fn judge(&mut self, now: Moment) -> Vec<Verdict> {
        if !self.sees_clearly(now) {
            return Vec::new();
        }
        let (grace, ttl) = (self.rules.grace, self.rules.ttl);
        let mut verdicts = Vec::new();
        let silent = |lease: &Lease| lease.broken.is_none() && now.since(lease.heard) >= ttl;
        for (id, lease) in self.take_leases(silent) {
            verdicts.push(Verdict::Doubted(id, lease.epoch));
        }
        let mut broken: BTreeMap<Group, usize> = BTreeMap::new();
        for lease in self.leases.values().filter(|lease| lease.broken.is_some()) {
            *broken.entry(lease.group.clone()).or_default() += 1;
        }
        for (group, broken) in broken {
            let present = self.known.values().filter(|known| Group::of(&known.instance) == group).count();
            let mass_loss = self.guard.forbids(&group, broken, present, now);
            let due = |lease: &Lease| lease.broken.is_some_and(|since| now.since(since) >= grace);
            for (id, lease) in self.take_leases(|lease| lease.group == group && due(lease)) {
                if mass_loss {
                    self.guard.doubted(group.clone(), id, now);
                    verdicts.push(Verdict::Doubted(id, lease.epoch));
                } else {
                    self.guard.lost(group.clone(), now);
                    verdicts.push(Verdict::Lost(id, lease.epoch));
                }
            }
        }
        verdicts
    }

    /// The leases to renew in the backend.
    pub fn leases(&self) -> Vec<(InstanceId, LeaseEpoch)> {
        self.leases.iter().map(|(id, lease)| (*id, lease.epoch)).collect()
    }

    /// The backend does not have these leases as this replica's: their instances must register again.
    pub fn disown(&mut self, leases: &[(InstanceId, LeaseEpoch)]) {
        for (id, epoch) in leases {
            if self.leases.get(id).is_some_and(|lease| lease.epoch == *epoch) {
                self.leases.remove(id);
            }
        }
    }

    /// The view of this replica.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A new watcher.
    pub fn watch(&self, selector: Selector, seen: Option<(ViewEpoch, Revision)>) -> Watcher {
        Watcher::new(&self.view, selector, seen)
    }

    /// What a watcher has not been told.
    pub fn read(&self, watcher: &mut Watcher) -> Reading {
        self.view.read(watcher, self.sight == Sight::Clear)
    }

    /// Whether losses are being held back.
    pub fn recovering(&self) -> bool {
        self.sight != Sight::Clear
    }

    /// Groups in which a mass loss was prevented and not yet resolved.
    pub fn alarms(&self) -> impl Iterator<Item = &Group> {
        self.guard.alarms().into_iter()
    }

    /// How many instances are kept.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn lease(&mut self, id: InstanceId, epoch: LeaseEpoch) -> Result<&mut Lease, LeaseUnknown> {
        self.leases.get_mut(&id).filter(|lease| lease.epoch == epoch).ok_or(LeaseUnknown(id))
    }

    fn take_leases(&mut self, which: impl Fn(&Lease) -> bool) -> Vec<(InstanceId, Lease)> {
        let ids: Vec<InstanceId> =
            self.leases.iter().filter(|(_, it)| which(it)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.leases.remove_entry(&id)).collect()
    }

    fn sees_clearly(&mut self, now: Moment) -> bool {
        if let Sight::Recovering { until } = self.sight
            && until <= now
        {
            self.sight = Sight::Clear;
            let ids: Vec<InstanceId> = self.known.keys().copied().collect();
            ids.into_iter().for_each(|id| self.show(id));
        }
        self.sight == Sight::Clear
    }

    fn put(&mut self, instance: Arc<Instance>, leased: bool) {
        let id = instance.id;
        if self.known.get(&id).is_some_and(|known| known.instance.epoch > instance.epoch) {
            return;
        }
        let foreign =
            |lease: &Lease| lease.epoch < instance.epoch || (!leased && lease.epoch == instance.epoch);
        if self.leases.get(&id).is_some_and(foreign) {
            self.leases.remove(&id);
        }
        if leased {
            self.guard.resolved(id);
        }
        self.known.insert(id, Known { instance, leased, stored: true });
        self.show(id);
    }

    fn gone(&mut self, id: InstanceId, epoch: LeaseEpoch) {
        if self.leases.get(&id).is_some_and(|lease| lease.epoch <= epoch) {
            self.leases.remove(&id);
        }
        let Some(known) = self.known.get(&id) else { return };
        let held = known.instance.epoch;
        // What the backend has lost is gone at whatever epoch; watchers hear the one that they hold.
        if held <= epoch || !known.stored {
            self.guard.resolved(id);
            self.known.remove(&id);
            self.view.remove(id, epoch.max(held));
        }
    }

    fn show(&mut self, id: InstanceId) {
        let Some(known) = self.known.get(&id) else { return };
        let mut shown = known.instance.clone();
        if !known.leased && self.sight == Sight::Clear && shown.status != shown.status.doubted() {
            let status = shown.status.doubted();
            Arc::make_mut(&mut shown).status = status;
        }
        self.view.put(shown);
    }

    /// What the backend has lost is kept only as far as there is room.
    fn make_room(&mut self) {
        while self.known.len() > self.rules.instances {
            let orphan = self.known.iter().find(|(_, known)| !known.stored);
            let Some((id, epoch)) = orphan.map(|(id, known)| (*id, known.instance.epoch)) else { return };
            self.gone(id, epoch);
        }
    }
}
