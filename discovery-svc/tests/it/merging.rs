//! Three replicas over one catalogue, two of them on one agent, under arbitrary interleavings of everything that can happen to them and to
//! Consul: afterwards they agree. The decisions are those of the service; the catalogue and its delays are the test's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use armature_discovery::adapters::consul::entry;
use armature_discovery::adapters::consul::plan::{self, Step, There, Wanted};
use armature_discovery::domain::instance::{
    Component, Instance, InstanceId, LeaseEpoch, Namespace, ReplicaId, Status,
};
use armature_discovery::domain::store::elsewhere::Entry;
use armature_discovery::domain::store::{Change, Limits, Store};
use armature_discovery::domain::time::Moment;
use proptest::prelude::*;

const TTL: Duration = Duration::from_secs(30);
const IDS: u64 = 4;
/// The agent of each replica.
const AGENTS: [usize; 3] = [0, 1, 1];

#[derive(Clone, Debug)]
enum Happens {
    Pass(u64),
    Register {
        id: u64,
        replica: usize,
    },
    Publish {
        id: u64,
        replica: usize,
        status: Status,
    },
    Deregister {
        id: u64,
        replica: usize,
    },
    Bury {
        id: u64,
        replica: usize,
    },
    Release {
        id: u64,
        replica: usize,
    },
    Renew {
        replica: usize,
    },
    Write {
        replica: usize,
    },
    Read {
        replica: usize,
    },
    /// Consul comes back empty.
    Wipe,
    /// An agent comes back empty.
    WipeAgent {
        agent: usize,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    let id = || 1..=IDS;
    let replica = || 0..AGENTS.len();
    let status = prop::sample::select(vec![Status::Starting, Status::Ready, Status::Draining]);
    prop_oneof![
        4 => (0u64..20).prop_map(Happens::Pass),
        6 => (id(), replica()).prop_map(|(id, replica)| Happens::Register { id, replica }),
        2 => (id(), replica(), status).prop_map(|(id, replica, status)| Happens::Publish { id, replica, status }),
        1 => (id(), replica()).prop_map(|(id, replica)| Happens::Deregister { id, replica }),
        1 => (id(), replica()).prop_map(|(id, replica)| Happens::Bury { id, replica }),
        2 => (id(), replica()).prop_map(|(id, replica)| Happens::Release { id, replica }),
        6 => replica().prop_map(|replica| Happens::Renew { replica }),
        8 => replica().prop_map(|replica| Happens::Write { replica }),
        8 => replica().prop_map(|replica| Happens::Read { replica }),
        1 => Just(Happens::Wipe),
        1 => (0usize..2).prop_map(|agent| Happens::WipeAgent { agent }),
    ]
}

/// A service as Consul has it.
#[derive(Clone)]
struct Written {
    entry: Entry,
    record: String,
    /// When its check expires.
    until: Moment,
}

struct World {
    now: Moment,
    stores: Vec<Store>,
    services: BTreeMap<(usize, InstanceId), Written>,
    fences: BTreeMap<InstanceId, (LeaseEpoch, Moment)>,
    /// As each replica showed them last.
    shown: Vec<BTreeMap<InstanceId, LeaseEpoch>>,
}

fn instance(id: u64) -> Instance {
    Instance {
        id: InstanceId(id),
        namespace: Namespace::default(),
        component: Component::Router,
        addresses: BTreeMap::new(),
        card: None,
        status: Status::Ready,
        epoch: LeaseEpoch(0),
        labels: BTreeMap::new(),
        boot_id: String::new(),
    }
}

fn holder(replica: usize) -> ReplicaId {
    ReplicaId(replica as u64)
}

impl World {
    fn new() -> Self {
        let limits = Limits {
            ttl: TTL,
            tombstone_ttl: Duration::from_secs(600),
            instances: 100,
            instance_bytes: 1_000_000,
            tombstones: 100,
            leaders: 1,
            card_bytes: 1,
            artifact_bytes: 1,
        };
        // Of equal clocks, so that two may grant the same epoch.
        let stores = AGENTS.map(|_| Store::new(limits, 7)).into();
        let shown = vec![BTreeMap::new(); AGENTS.len()];
        Self { now: Moment::default(), stores, services: BTreeMap::new(), fences: BTreeMap::new(), shown }
    }

    fn state(&self, replica: usize) -> BTreeMap<InstanceId, (LeaseEpoch, Status, bool)> {
        let Change::Snapshot { instances, .. } = self.stores[replica].snapshot() else { unreachable!() };
        instances.into_iter().map(|(it, leased)| (it.id, (it.epoch, it.status, leased))).collect()
    }

    /// No epoch of an instance falls, and nobody is forgotten without a word.
    fn check(&mut self, replica: usize) {
        let mut gone = BTreeSet::new();
        for change in self.stores[replica].take_changes() {
            if let Change::Gone { id, .. } = change {
                gone.insert(id);
            }
        }
        let now: BTreeMap<_, _> =
            self.state(replica).into_iter().map(|(id, (epoch, ..))| (id, epoch)).collect();
        for (id, before) in &self.shown[replica] {
            match now.get(id) {
                Some(epoch) => assert!(epoch >= before || gone.contains(id), "{id}: the highest epoch wins"),
                None => assert!(gone.contains(id), "{id} is forgotten"),
            }
        }
        self.shown[replica] = now;
    }

    fn renew(&mut self, replica: usize) {
        let held = |id: u64| {
            let own = self.stores[replica].own(InstanceId(id)).filter(|own| own.leased)?;
            Some((own.instance.id, own.instance.epoch))
        };
        let leases: Vec<_> = (1..=IDS).filter_map(held).collect();
        self.stores[replica].renew(holder(replica), &leases, self.now);
    }

    /// What a writer does, all at once.
    fn write(&mut self, replica: usize) {
        let (agent, now) = (AGENTS[replica], self.now);
        for id in (1..=IDS).map(InstanceId) {
            let store = &self.stores[replica];
            if let Some((epoch, left)) = store.fence(id, now)
                && self.fences.get(&id).is_none_or(|(written, until)| *written < epoch || *until <= now)
            {
                self.fences.insert(id, (epoch, now + left));
            }
            let own = store.own(id);
            let wanted = own.as_ref().map(|own| Wanted {
                holder: own.holder,
                epoch: own.instance.epoch,
                record: entry::record(own),
                leased: own.leased,
                maintenance: false,
            });
            let there = self.services.get(&(agent, id)).map(|it| There {
                component: it.entry.instance.component,
                holder: it.entry.holder,
                epoch: it.entry.instance.epoch,
                record: it.record.clone(),
                leased: Some(it.entry.leased),
                maintenance: Some(false),
            });
            let useless = there.as_ref().is_some_and(|there| {
                let forgotten = !store.knows(id) && there.holder == holder(replica);
                store.obsolete(id, there.epoch, there.holder, now) || forgotten
            });
            for step in plan::steps(wanted.as_ref(), there.as_ref(), useless) {
                match (step, &own, self.services.get_mut(&(agent, id))) {
                    (Step::Register, Some(own), _) => {
                        let entry = Entry {
                            instance: (*own.instance).clone(),
                            facts: None,
                            holder: own.holder,
                            leased: own.leased,
                        };
                        let written = Written { record: entry::record(own), entry, until: now + TTL };
                        self.services.insert((agent, id), written);
                    }
                    (Step::Lease(leased), _, Some(written)) => written.entry.leased = leased,
                    (Step::Deregister, ..) => {
                        self.services.remove(&(agent, id));
                    }
                    _ => {}
                }
            }
            if let (Some(own), Some(written)) = (own, self.services.get_mut(&(agent, id)))
                && own.leased
                && written.record == entry::record(&own)
            {
                (written.entry.leased, written.until) = (true, now + TTL);
            }
        }
    }

    /// What a follower does.
    fn read(&mut self, replica: usize) {
        let entries = self.services.values().map(|it| it.entry.clone()).collect();
        let left =
            |(id, (epoch, until)): (&InstanceId, &(LeaseEpoch, Moment))| (*id, *epoch, until.since(self.now));
        let gone: Vec<_> = self.fences.iter().map(left).collect();
        self.stores[replica].observe(Component::Router, entries, self.now);
        self.stores[replica].observe_gone(&gone, self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        for written in self.services.values_mut().filter(|it| it.until <= self.now) {
            written.entry.leased = false;
        }
    }

    fn run(&mut self, it: Happens) {
        let now = self.now;
        match it {
            Happens::Pass(seconds) => self.pass(seconds),
            Happens::Register { id, replica } => {
                let _ = self.stores[replica].register(instance(id), holder(replica), now);
            }
            Happens::Publish { id, replica, status } => {
                let _ = self.stores[replica].set_status(InstanceId(id), status, now);
            }
            Happens::Deregister { id, replica } => {
                self.stores[replica].deregister(InstanceId(id), now).unwrap()
            }
            Happens::Bury { id, replica } => {
                if let Some(own) = self.stores[replica].own(InstanceId(id)) {
                    self.stores[replica].bury(InstanceId(id), own.instance.epoch, now);
                }
            }
            Happens::Release { id, replica } => {
                if let Some(own) = self.stores[replica].own(InstanceId(id)) {
                    self.stores[replica].release(InstanceId(id), own.instance.epoch, now);
                }
            }
            Happens::Renew { replica } => self.renew(replica),
            Happens::Write { replica } => self.write(replica),
            Happens::Read { replica } => self.read(replica),
            Happens::Wipe => {
                self.services.clear();
                self.fences.clear();
            }
            Happens::WipeAgent { agent } => self.services.retain(|(of, _), _| *of != agent),
        }
        (0..AGENTS.len()).for_each(|replica| self.check(replica));
    }

    /// Nothing more happens, and everything is told.
    fn settle(&mut self) {
        for _ in 0..=TTL.as_secs() {
            self.pass(1);
            for replica in 0..AGENTS.len() {
                self.renew(replica);
                self.write(replica);
                self.read(replica);
                self.check(replica);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn replicas_agree_whatever_happened(steps in prop::collection::vec(happens(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.run(step);
        }
        world.settle();
        let state = world.state(0);
        for replica in 1..AGENTS.len() {
            prop_assert_eq!(&world.state(replica), &state, "replica {}", replica);
        }
        for id in (1..=IDS).map(InstanceId) {
            let owners = world.stores.iter().filter(|store| store.own(id).is_some()).count();
            prop_assert!(owners == usize::from(state.contains_key(&id)), "{} has {} owners", id, owners);
            let entries: Vec<_> = world.services.iter().filter(|((_, of), _)| *of == id).collect();
            let known = state.get(&id).copied();
            let written = entries.first().map(|(_, it)| {
                (it.entry.instance.epoch, it.entry.instance.status, it.entry.leased)
            });
            prop_assert!(entries.len() <= 1, "{} has {} entries", id, entries.len());
            prop_assert_eq!(written, known, "Consul has what replicas have of {}", id);
            if let (Some((gone, until)), Some((epoch, ..))) = (world.fences.get(&id), known) {
                prop_assert!(*until <= world.now || epoch > *gone, "{} is fenced and there", id);
            }
        }
    }
}
