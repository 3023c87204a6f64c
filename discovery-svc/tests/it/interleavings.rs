//! Two replicas of one backend under arbitrary interleavings: the rules by which an instance leaves a view, and what watchers make of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use armature_discovery::domain::guard::MassLoss;
use armature_discovery::domain::instance::{
    Component, Instance, InstanceId, LeaseEpoch, Namespace, ReplicaId, Status,
};
use armature_discovery::domain::registry::{Registry, Rules, Verdict};
use armature_discovery::domain::store::{Change, Limits, RegisterError, Store};
use armature_discovery::domain::time::Moment;
use armature_discovery::domain::view::{Revision, Selector, Told, View, ViewEpoch, Watcher};
use proptest::prelude::*;

const TTL: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);
const TOMBSTONE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Register {
        id: u64,
        replica: usize,
    },
    Attach {
        id: u64,
        replica: usize,
    },
    Heartbeat {
        id: u64,
        replica: usize,
    },
    Detach {
        id: u64,
        replica: usize,
    },
    Publish {
        id: u64,
        status: Status,
    },
    Deregister {
        id: u64,
    },
    /// Everybody registers and attaches.
    Fill {
        replica: usize,
    },
    /// Every stream ends.
    Crash {
        replica: usize,
    },
    Renew {
        replica: usize,
    },
    Deliver {
        replica: usize,
    },
    Resync {
        replica: usize,
    },
    Cut {
        replica: usize,
    },
    Wipe,
    Read {
        replica: usize,
    },
    Resume {
        replica: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 1u64..=6;
    let replica = || 0usize..2;
    let status = prop::sample::select(vec![Status::Starting, Status::Ready, Status::Draining]);
    prop_oneof![
        6 => (0u64..12).prop_map(Step::Pass),
        4 => (id(), replica()).prop_map(|(id, replica)| Step::Register { id, replica }),
        6 => (id(), replica()).prop_map(|(id, replica)| Step::Attach { id, replica }),
        4 => (id(), replica()).prop_map(|(id, replica)| Step::Heartbeat { id, replica }),
        3 => (id(), replica()).prop_map(|(id, replica)| Step::Detach { id, replica }),
        2 => (id(), status).prop_map(|(id, status)| Step::Publish { id, status }),
        1 => id().prop_map(|id| Step::Deregister { id }),
        2 => replica().prop_map(|replica| Step::Fill { replica }),
        2 => replica().prop_map(|replica| Step::Crash { replica }),
        3 => replica().prop_map(|replica| Step::Renew { replica }),
        8 => replica().prop_map(|replica| Step::Deliver { replica }),
        1 => replica().prop_map(|replica| Step::Resync { replica }),
        1 => replica().prop_map(|replica| Step::Cut { replica }),
        1 => Just(Step::Wipe),
        4 => replica().prop_map(|replica| Step::Read { replica }),
        1 => replica().prop_map(|replica| Step::Resume { replica }),
    ]
}

fn selector() -> Selector {
    Selector { namespace: Namespace::default(), components: BTreeSet::new() }
}

/// What a consumer makes of what it is told.
struct Consumer {
    watcher: Watcher,
    instances: BTreeMap<InstanceId, Arc<Instance>>,
    revision: Revision,
    snapshots: usize,
}

impl Consumer {
    fn new(view: &View) -> Self {
        let watcher = Watcher::new(view, selector(), None);
        Self { watcher, instances: BTreeMap::new(), revision: Revision::default(), snapshots: 0 }
    }

    fn read(&mut self, registry: &Registry) {
        loop {
            let told = registry.read(&mut self.watcher).told;
            if told.is_empty() {
                break;
            }
            self.take(told);
        }
        let view: BTreeMap<_, _> = registry.view().instances().map(|it| (it.id, it.clone())).collect();
        assert_eq!(self.instances, view, "snapshot and deltas are the state");
    }

    fn take(&mut self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::Snapshot { revision, instances } => {
                    self.snapshots += 1;
                    self.revision = revision;
                    self.instances = instances.into_iter().map(|it| (it.id, it)).collect();
                }
                Told::Put { revision, instance } => {
                    assert!(revision > self.revision);
                    self.revision = revision;
                    self.instances.insert(instance.id, instance);
                }
                Told::Gone { revision, id, .. } => {
                    assert!(revision > self.revision);
                    self.revision = revision;
                    self.instances.remove(&id);
                }
            }
        }
    }
}

struct Replica {
    registry: Registry,
    inbox: VecDeque<Change>,
    reachable: bool,
    consumer: Consumer,
    /// Streams by lease, and when the last one ended.
    streams: BTreeMap<(InstanceId, LeaseEpoch), usize>,
    ended: BTreeMap<(InstanceId, LeaseEpoch), Moment>,
}

struct World {
    now: Moment,
    store: Store,
    wiped: u64,
    replicas: Vec<Replica>,
    epochs: BTreeMap<InstanceId, LeaseEpoch>,
    /// Ids that may leave a view, with the epoch up to which.
    may_leave: BTreeMap<InstanceId, LeaseEpoch>,
    fenced: BTreeMap<InstanceId, Moment>,
}

fn limits() -> Limits {
    Limits {
        ttl: TTL,
        tombstone_ttl: TOMBSTONE,
        instances: 100,
        instance_bytes: 1_000_000,
        tombstones: 100,
        leaders: 1,
        card_bytes: 1,
        artifact_bytes: 1,
    }
}

fn instance(id: u64, epoch: LeaseEpoch) -> Instance {
    Instance {
        id: InstanceId(id),
        namespace: Namespace::default(),
        component: Component::Router,
        addresses: BTreeMap::new(),
        card: None,
        status: Status::Ready,
        epoch,
        labels: BTreeMap::new(),
        boot_id: String::new(),
    }
}

impl World {
    fn new(ring: usize) -> Self {
        let rules = Rules {
            grace: GRACE,
            ttl: TTL,
            recovery: TTL,
            mass_loss: MassLoss { window: TTL, share: 0.2, at_least: 3 },
            ring,
            instances: 100,
        };
        let replica = |epoch| {
            let mut registry = Registry::new(rules, ViewEpoch(epoch), Revision(7), Moment::default());
            registry.apply(Change::Snapshot { instances: vec![], gone: vec![] }, Moment::default());
            Replica {
                consumer: Consumer::new(registry.view()),
                registry,
                inbox: VecDeque::new(),
                reachable: true,
                streams: BTreeMap::new(),
                ended: BTreeMap::new(),
            }
        };
        Self {
            now: Moment::default(),
            store: Store::new(limits(), 0),
            wiped: 0,
            replicas: vec![replica(1), replica(2)],
            epochs: BTreeMap::new(),
            may_leave: BTreeMap::new(),
            fenced: BTreeMap::new(),
        }
    }

    /// Queues what the store changed for the replicas that hear it.
    fn publish(&mut self) -> Vec<Change> {
        let changes = self.store.take_changes();
        for replica in self.replicas.iter_mut().filter(|replica| replica.reachable) {
            replica.inbox.extend(changes.iter().cloned());
        }
        changes
    }

    fn deliver(&mut self, replica: usize, most: usize) {
        let now = self.now;
        for _ in 0..most {
            let Some(change) = self.replicas[replica].inbox.pop_front() else { return };
            self.watched(replica, |registry| registry.apply(change, now));
        }
    }

    /// Does something to a registry and checks who left its view, and that no epoch fell.
    fn watched<T>(&mut self, replica: usize, act: impl FnOnce(&mut Registry) -> T) -> T {
        let shown = |registry: &Registry| -> BTreeMap<_, _> {
            registry.view().instances().map(|it| (it.id, (it.epoch, it.status))).collect()
        };
        let registry = &mut self.replicas[replica].registry;
        let before = shown(registry);
        let answer = act(registry);
        let after = shown(registry);
        for (id, (epoch, _)) in &before {
            match after.get(id) {
                Some((now, _)) => assert!(now >= epoch, "the highest epoch wins"),
                None => assert!(
                    self.may_leave.get(id).is_some_and(|up_to| epoch <= up_to),
                    "instance {id} left a view without a reason"
                ),
            }
        }
        if registry.recovering() {
            for (id, (_, status)) in &after {
                let was = before.get(id).map(|(_, status)| *status);
                assert!(*status != Status::Suspect || was == Some(Status::Suspect), "doubt while recovering");
            }
        }
        answer
    }

    fn judge(&mut self, replica: usize) {
        let now = self.now;
        let verdicts = self.watched(replica, |registry| registry.judge(now));
        let it = &self.replicas[replica];
        assert!(verdicts.is_empty() || !it.registry.recovering(), "a verdict while recovering");
        let lost = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Lost(..))).count();
        assert!(lost < 3, "a mass loss was not held back");
        for verdict in verdicts {
            match verdict {
                Verdict::Lost(id, epoch) => {
                    let it = &self.replicas[replica];
                    assert_eq!(
                        it.streams.get(&(id, epoch)),
                        Some(&0),
                        "lost with a stream, or without ever one"
                    );
                    assert!(now.since(it.ended[&(id, epoch)]) >= GRACE, "lost within the grace");
                    self.may_leave.insert(id, epoch);
                    self.store.bury(id, epoch, now);
                    if self.publish().contains(&Change::Gone { id, epoch }) {
                        self.fenced.insert(id, now);
                    }
                }
                Verdict::Doubted(id, epoch) => self.store.release(id, epoch, now),
            }
        }
        self.publish();
    }

    fn is_fenced(&self, id: InstanceId) -> bool {
        self.fenced.get(&id).is_some_and(|at| self.now.since(*at) < TOMBSTONE)
    }

    fn epoch(&self, id: u64) -> LeaseEpoch {
        self.epochs.get(&InstanceId(id)).copied().unwrap_or_default()
    }

    fn run(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Pass(seconds) => {
                for _ in 0..seconds {
                    self.now = self.now + Duration::from_secs(1);
                    self.judge(0);
                    self.judge(1);
                }
            }
            Step::Register { id, replica } => {
                let asked = instance(id, self.epoch(id));
                let answer = self.store.register(asked.clone(), ReplicaId(replica as u64), now);
                assert_eq!(answer == Err(RegisterError::Fenced(asked.id)), self.is_fenced(asked.id));
                if let Ok(epoch) = answer {
                    assert!(epoch >= asked.epoch, "epochs grow, also over a wiped backend");
                    self.epochs.insert(asked.id, epoch);
                    self.replicas[replica].registry.leased(&asked, epoch, now);
                }
                self.publish();
            }
            Step::Attach { id, replica } => {
                let lease = (InstanceId(id), self.epoch(id));
                let it = &mut self.replicas[replica];
                if it.registry.attach(lease.0, lease.1, now).is_ok() {
                    *it.streams.entry(lease).or_default() += 1;
                }
            }
            Step::Heartbeat { id, replica } => {
                let (id, epoch) = (InstanceId(id), self.epoch(id));
                let _ = self.replicas[replica].registry.heartbeat(id, epoch, now);
            }
            Step::Detach { id, replica } => {
                let lease = (InstanceId(id), self.epoch(id));
                let it = &mut self.replicas[replica];
                if let Some(streams) = it.streams.get_mut(&lease).filter(|streams| **streams > 0) {
                    *streams -= 1;
                    if *streams == 0 {
                        it.ended.insert(lease, now);
                    }
                    it.registry.detach(lease.0, lease.1, now);
                }
            }
            Step::Publish { id, status } => {
                let answer = self.store.set_status(InstanceId(id), status, now);
                assert!(answer.is_err() || !self.is_fenced(InstanceId(id)));
                self.publish();
            }
            Step::Deregister { id } => {
                self.store.deregister(InstanceId(id), now).unwrap();
                self.may_leave.insert(InstanceId(id), LeaseEpoch(u64::MAX));
                if !self.is_fenced(InstanceId(id)) {
                    self.fenced.insert(InstanceId(id), now);
                }
                self.publish();
            }
            Step::Fill { replica } => {
                for id in 1..=6 {
                    self.run(Step::Register { id, replica });
                    self.run(Step::Attach { id, replica });
                }
                self.deliver(replica, usize::MAX);
            }
            Step::Crash { replica } => {
                let streams: Vec<_> = self.replicas[replica].streams.clone().into_iter().collect();
                for ((id, _), open) in streams {
                    (0..open).for_each(|_| self.run(Step::Detach { id: id.0, replica }));
                }
            }
            Step::Renew { replica } => {
                let it = &mut self.replicas[replica];
                if it.reachable {
                    let leases = it.registry.leases();
                    let unknown = self.store.renew(ReplicaId(replica as u64), &leases, now);
                    let unknown: Vec<_> = leases.into_iter().filter(|(id, _)| unknown.contains(id)).collect();
                    it.registry.disown(&unknown);
                }
                self.publish();
            }
            Step::Deliver { replica } => self.deliver(replica, 4),
            Step::Resync { replica } => {
                let snapshot = self.store.snapshot();
                let it = &mut self.replicas[replica];
                it.inbox.clear();
                it.reachable = true;
                it.inbox.push_back(snapshot);
                self.deliver(replica, 1);
            }
            Step::Cut { replica } => {
                let it = &mut self.replicas[replica];
                it.reachable = false;
                it.inbox.push_back(Change::Unreachable);
                self.deliver(replica, usize::MAX);
            }
            Step::Wipe => {
                // The backend comes back empty: everybody was cut off and gets a snapshot.
                self.wiped += 1;
                self.store = Store::new(limits(), self.wiped * 1_000_000);
                self.fenced.clear();
                for replica in 0..2 {
                    self.run(Step::Cut { replica });
                    self.run(Step::Resync { replica });
                }
            }
            Step::Read { replica } => {
                let it = &mut self.replicas[replica];
                it.consumer.read(&it.registry);
            }
            Step::Resume { replica } => {
                let it = &mut self.replicas[replica];
                let seen = (it.registry.view().epoch(), it.consumer.revision);
                if it.consumer.snapshots > 0 {
                    it.consumer.watcher = Watcher::new(it.registry.view(), selector(), Some(seen));
                }
                it.consumer.read(&it.registry);
            }
        }
    }

    /// Everything is told: both replicas and a late consumer agree with the backend.
    fn settle(&mut self) {
        for replica in 0..2 {
            self.run(Step::Resync { replica });
            self.deliver(replica, usize::MAX);
            let it = &mut self.replicas[replica];
            it.consumer.read(&it.registry);
            let mut late = Consumer::new(it.registry.view());
            late.read(&it.registry);
            assert_eq!(late.instances, it.consumer.instances, "a resumed view is the view of a snapshot");
            let Change::Snapshot { instances, .. } = self.store.snapshot() else { unreachable!() };
            for (stored, _) in instances {
                assert_eq!(it.consumer.instances[&stored.id].epoch, stored.epoch);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn an_instance_leaves_a_view_only_by_the_rules(
        steps in prop::collection::vec(step(), 1..150),
        ring in prop::sample::select(vec![1usize, 3, 100]),
    ) {
        let mut world = World::new(ring);
        // Past the recovery, so that verdicts happen; each reconnect recovers again.
        world.run(Step::Pass(31));
        for step in steps {
            world.run(step);
        }
        world.settle();
    }
}
