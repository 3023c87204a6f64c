//! What watchers see: instances as they are shown, a revision, and the last deltas in a bounded ring.
//!
//! A watcher is a position in the ring, not a queue of its own: one that is slow, or that resumes, reads on from where it was while the
//! ring still has it, and gets a snapshot otherwise. So the state after (snapshot, deltas) is the view, whatever the speed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::instance::{Component, Instance, InstanceId, LeaseEpoch, Namespace};

/// Deltas told at a time: bounds what a slow watcher has been told and not taken.
const MAX_TOLD: usize = 64;

/// Names one life of one server's view; random per start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewEpoch(pub u64);

/// Counts the changes of a view; grows over restarts too, because the shell starts it from the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Which instances a watcher wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Of this namespace.
    pub namespace: Namespace,
    /// Of these components; empty means all.
    pub components: BTreeSet<Component>,
}

impl Selector {
    /// Whether an instance is wanted.
    pub fn matches(&self, instance: &Instance) -> bool {
        self.namespace == instance.namespace
            && (self.components.is_empty() || self.components.contains(&instance.component))
    }
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Replaces what the watcher has.
    Snapshot {
        /// Of the view.
        revision: Revision,
        /// Every wanted instance.
        instances: Vec<Arc<Instance>>,
    },
    /// An instance is new or different.
    Put {
        /// Of this change.
        revision: Revision,
        /// As it is shown.
        instance: Arc<Instance>,
    },
    /// An instance is gone.
    Gone {
        /// Of this change.
        revision: Revision,
        /// Which.
        id: InstanceId,
        /// Yields to a higher one.
        epoch: LeaseEpoch,
    },
}

/// Where a watcher is.
#[derive(Clone, Debug)]
pub struct Watcher {
    selector: Selector,
    position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Has nothing.
    Nowhere,
    /// Has the view of another server or of an earlier life of this one.
    Elsewhere,
    /// Has been told what is here, but may have more; owed a snapshot when losses may be reported.
    Merged(Revision),
    /// Has exactly the view of this revision.
    At(Revision),
}

impl Watcher {
    /// A watcher that asks for `selector` and has `seen` a revision of a view's epoch.
    pub fn new(view: &View, selector: Selector, seen: Option<(ViewEpoch, Revision)>) -> Self {
        let position = match seen {
            None => Position::Nowhere,
            Some((epoch, revision)) if epoch == view.epoch && revision <= view.revision => {
                Position::At(revision)
            }
            Some(_) => Position::Elsewhere,
        };
        Self { selector, position }
    }
}

/// What was told to a watcher in one reading.
#[derive(Debug)]
pub struct Reading {
    /// In order.
    pub told: Vec<Told>,
    /// Whether the watcher had fallen out of the ring.
    pub resynced: bool,
}

/// See the module. Bounded: the instances by the registry, the ring by its capacity.
#[derive(Debug)]
pub struct View {
    epoch: ViewEpoch,
    revision: Revision,
    shown: BTreeMap<InstanceId, (Revision, Arc<Instance>)>,
    ring: VecDeque<Delta>,
    capacity: usize,
}

#[derive(Clone, Debug)]
struct Delta {
    revision: Revision,
    instance: Arc<Instance>,
    gone: bool,
}

impl Delta {
    fn told(&self) -> Told {
        let (revision, instance) = (self.revision, &self.instance);
        match self.gone {
            true => Told::Gone { revision, id: instance.id, epoch: instance.epoch },
            false => Told::Put { revision, instance: instance.clone() },
        }
    }
}

impl View {
    /// An empty view whose first change is revision `first + 1`, with a ring of `capacity` deltas.
    pub fn new(epoch: ViewEpoch, first: Revision, capacity: usize) -> Self {
        Self {
            epoch,
            revision: first,
            shown: BTreeMap::new(),
            ring: VecDeque::new(),
            capacity: capacity.max(1),
        }
    }

    /// Of this life.
    pub fn epoch(&self) -> ViewEpoch {
        self.epoch
    }

    /// Of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Every instance, as it is shown.
    pub fn instances(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.shown.values().map(|(_, instance)| instance)
    }

    /// Shows an instance; nothing happens when it is shown so already.
    pub fn put(&mut self, instance: Arc<Instance>) {
        if self.shown.get(&instance.id).is_some_and(|(_, shown)| *shown == instance) {
            return;
        }
        self.push(instance.clone(), false);
        self.shown.insert(instance.id, (self.revision, instance));
    }

    /// Takes an instance away.
    pub fn remove(&mut self, id: InstanceId, epoch: LeaseEpoch) {
        if let Some((_, mut instance)) = self.shown.remove(&id) {
            Arc::make_mut(&mut instance).epoch = epoch;
            self.push(instance, true);
        }
    }

    /// What a watcher has not been told. `complete` says that the view holds all there is to see: otherwise (the registry is recovering) a
    /// watcher that comes with a view from elsewhere is told only what is here, and gets its snapshot later.
    pub fn read(&self, watcher: &mut Watcher, complete: bool) -> Reading {
        let selector = &watcher.selector;
        let here = self.revision;
        let at = |told, position| (told, position, false);
        let (told, position, resynced) = match watcher.position {
            Position::Elsewhere if !complete => at(self.all(selector), Position::Merged(here)),
            Position::Nowhere | Position::Elsewhere => at(vec![self.snapshot(selector)], Position::At(here)),
            Position::Merged(_) if complete => at(vec![self.snapshot(selector)], Position::At(here)),
            Position::Merged(seen) => match self.since(seen, selector) {
                Some((told, seen)) => at(told, Position::Merged(seen)),
                None => (self.all(selector), Position::Merged(here), true),
            },
            Position::At(seen) => match self.since(seen, selector) {
                Some((told, seen)) => at(told, Position::At(seen)),
                None => (vec![self.snapshot(selector)], Position::At(here), true),
            },
        };
        watcher.position = position;
        Reading { told, resynced }
    }

    /// Every wanted instance as a change, oldest first.
    fn all(&self, selector: &Selector) -> Vec<Told> {
        let mut wanted: Vec<_> = self.shown.values().filter(|(_, it)| selector.matches(it)).collect();
        wanted.sort_by_key(|(revision, _)| *revision);
        let put = |(revision, it): &(Revision, Arc<Instance>)| Told::Put {
            revision: *revision,
            instance: it.clone(),
        };
        wanted.into_iter().map(put).collect()
    }

    fn snapshot(&self, selector: &Selector) -> Told {
        let instances = self.instances().filter(|instance| selector.matches(instance)).cloned().collect();
        Told::Snapshot { revision: self.revision, instances }
    }

    /// The first wanted deltas after `seen` and how far that is; none when the ring has lost one.
    fn since(&self, seen: Revision, selector: &Selector) -> Option<(Vec<Told>, Revision)> {
        let missing = usize::try_from(self.revision.0 - seen.0).ok()?;
        let skip = self.ring.len().checked_sub(missing)?;
        let mut told = Vec::new();
        for delta in self.ring.iter().skip(skip).filter(|delta| selector.matches(&delta.instance)) {
            told.push(delta.told());
            if told.len() == MAX_TOLD {
                return Some((told, delta.revision));
            }
        }
        Some((told, self.revision))
    }

    fn push(&mut self, instance: Arc<Instance>, gone: bool) {
        self.revision = self.revision.next();
        if self.ring.len() == self.capacity {
            self.ring.pop_front();
        }
        self.ring.push_back(Delta { revision: self.revision, instance, gone });
    }
}
