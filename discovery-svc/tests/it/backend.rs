//! What every backend promises; each implementation runs the whole suite.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::InstanceId;
use armature_discovery::adapters::file::InstanceFile;
use armature_discovery::adapters::memory::Memory;
use armature_discovery::domain::instance::{
    BlockSize, CardFacts, Component, Digest, Instance, KvIdentity, LeaseEpoch, Namespace, ReplicaId, Status,
};
use armature_discovery::domain::leaders::Term;
use armature_discovery::domain::store::{Change, ChangeError, Limits, RegisterError};
use armature_discovery::ports::{Backend, CampaignError, PutError};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::time::{Instant, sleep};

const HERE: ReplicaId = ReplicaId(1);
const THERE: ReplicaId = ReplicaId(2);
/// The static instance of the file backend's file.
const LISTED: InstanceId = InstanceId(0xf1);

pub(crate) fn limits() -> Limits {
    Limits {
        ttl: Duration::from_secs(30),
        tombstone_ttl: Duration::from_secs(600),
        instances: 4,
        instance_bytes: 2000,
        tombstones: 3,
        leaders: 2,
        card_bytes: 1000,
        artifact_bytes: 1000,
    }
}

fn memory() -> Memory {
    Memory::new(limits(), 100, 8)
}

#[tokio::test(start_paused = true)]
async fn memory_keeps_the_promises() {
    suite(async || (Arc::new(memory()) as Arc<dyn Backend>, Vec::new()), limits()).await;
}

#[tokio::test(start_paused = true)]
async fn file_keeps_the_promises() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("instances.toml");
    let text =
        "[[instance]]\nid = \"00000000000000f1\"\ncomponent = \"worker\"\naddresses = { grpc = \"h:1\" }\n";
    std::fs::write(&path, text).unwrap();
    let fresh = async || {
        let memory = memory();
        InstanceFile::load(path.clone(), memory.clone()).await.unwrap();
        (Arc::new(memory) as Arc<dyn Backend>, vec![LISTED])
    };
    suite(fresh, limits()).await;
    let memory = memory();
    InstanceFile::load(path, memory.clone()).await.unwrap();
    let listed = instance(LISTED.0);
    assert_eq!(memory.register(listed, HERE).await, Err(RegisterError::Static(LISTED)));
    assert_eq!(memory.set_status(LISTED, Status::Draining).await, Err(ChangeError::Static(LISTED)));
    assert_eq!(memory.deregister(LISTED).await, Err(ChangeError::Static(LISTED)));
}

/// `limits` says which of [`limits`]'s times the backend keeps: one that is not in this process keeps shorter ones.
pub(crate) async fn suite(fresh: impl AsyncFn() -> (Arc<dyn Backend>, Vec<InstanceId>), limits: Limits) {
    epochs_grow_with_the_holder(&*fresh().await.0).await;
    a_lease_that_is_not_renewed_runs_out(&*fresh().await.0, limits.ttl).await;
    the_gone_are_fenced(&*fresh().await.0, limits.tombstone_ttl).await;
    verdicts_concern_one_epoch(&*fresh().await.0).await;
    let (backend, listed) = fresh().await;
    room_is_made_by_the_unleased(&*backend, listed.len()).await;
    let (backend, listed) = fresh().await;
    changes_add_up(&*backend, &listed).await;
    bytes_of_instances_are_bounded(&*fresh().await.0).await;
    one_block_size_for_one_model(&*fresh().await.0).await;
    blobs_are_kept_within_bounds(&*fresh().await.0).await;
    leaders_are_fenced_by_terms(&*fresh().await.0).await;
}

fn instance(id: u64) -> Instance {
    Instance {
        id: InstanceId(id),
        namespace: Namespace::default(),
        component: Component::Worker,
        addresses: BTreeMap::from([("grpc".to_owned(), "host:1".to_owned())]),
        card: None,
        status: Status::Ready,
        epoch: LeaseEpoch(0),
        labels: BTreeMap::new(),
        boot_id: String::new(),
    }
}

async fn epochs_grow_with_the_holder(backend: &dyn Backend) {
    let first = backend.register(instance(1), HERE).await.unwrap();
    assert_eq!(backend.register(instance(1), HERE).await.unwrap(), first, "idempotent");
    let moved = backend.register(instance(1), THERE).await.unwrap();
    assert!(moved > first);
    assert_eq!(backend.renew(HERE, &[(InstanceId(1), first)]).await.unwrap(), [InstanceId(1)]);
    assert_eq!(backend.renew(THERE, &[(InstanceId(1), moved)]).await.unwrap(), []);
    let known = Instance { epoch: LeaseEpoch(moved.0 + 1000), ..instance(2) };
    assert!(
        backend.register(known.clone(), HERE).await.unwrap() > known.epoch,
        "greater than the owner's last"
    );
}

async fn a_lease_that_is_not_renewed_runs_out(backend: &dyn Backend, ttl: Duration) {
    let kept = backend.register(instance(1), HERE).await.unwrap();
    let left = backend.register(instance(2), HERE).await.unwrap();
    for _ in 0..4 {
        sleep(ttl / 3).await;
        assert_eq!(backend.renew(HERE, &[(InstanceId(1), kept)]).await.unwrap(), []);
    }
    assert_eq!(backend.renew(HERE, &[(InstanceId(2), left)]).await.unwrap(), [InstanceId(2)]);
    let mut follower = Follower::new(backend).await;
    assert_eq!(follower.leased(1), Some(true));
    assert_eq!(follower.leased(2), Some(false), "kept, unleased");
    assert!(backend.register(instance(2), HERE).await.unwrap() > left);
    follower.until(|it| it.leased(2) == Some(true)).await;
}

async fn the_gone_are_fenced(backend: &dyn Backend, tombstone_ttl: Duration) {
    backend.register(instance(1), HERE).await.unwrap();
    for id in [InstanceId(1), InstanceId(2)] {
        backend.deregister(id).await.unwrap();
        backend.deregister(id).await.unwrap();
        let fenced = backend.register(instance(id.0), THERE).await;
        assert_eq!(fenced, Err(RegisterError::Fenced(id)), "known or not");
        assert_eq!(backend.set_status(id, Status::Ready).await, Err(ChangeError::Fenced(id)));
    }
    assert_eq!(
        backend.set_status(InstanceId(3), Status::Ready).await,
        Err(ChangeError::Unknown(InstanceId(3)))
    );
    sleep(tombstone_ttl).await;
    backend.register(instance(1), HERE).await.unwrap();
    for id in 10..20 {
        backend.deregister(InstanceId(id)).await.unwrap();
    }
    let usage = backend.usage();
    assert!(usage.tombstones == 3 && usage.tombstones_dropped >= 7, "bounded: {usage:?}");
}

async fn verdicts_concern_one_epoch(backend: &dyn Backend) {
    let old = backend.register(instance(1), HERE).await.unwrap();
    let new = backend.register(instance(1), THERE).await.unwrap();
    backend.bury(InstanceId(1), old).await.unwrap();
    backend.release(InstanceId(1), old).await.unwrap();
    let mut follower = Follower::new(backend).await;
    assert_eq!(follower.leased(1), Some(true), "it had moved");
    backend.release(InstanceId(1), new).await.unwrap();
    follower.until(|it| it.leased(1) == Some(false)).await;
    backend.bury(InstanceId(1), new).await.unwrap();
    follower.until(|it| it.leased(1).is_none()).await;
    assert_eq!(backend.register(instance(1), HERE).await, Err(RegisterError::Fenced(InstanceId(1))));
}

async fn room_is_made_by_the_unleased(backend: &dyn Backend, listed: usize) {
    let room = (limits().instances - listed) as u64;
    let mut epochs = Vec::new();
    for id in 1..=room {
        epochs.push(backend.register(instance(id), HERE).await.unwrap());
    }
    let full = backend.register(instance(9), HERE).await;
    assert_eq!(full, Err(RegisterError::Full { key: "limits.instances", limit: 4 }));
    backend.release(InstanceId(2), epochs[1]).await.unwrap();
    backend.register(instance(9), HERE).await.unwrap();
    let follower = Follower::new(backend).await;
    assert_eq!((follower.leased(2), follower.leased(9)), (None, Some(true)));
    backend.release(InstanceId(9), LeaseEpoch(u64::MAX)).await.unwrap();
    let unfenced = backend.register(instance(2), HERE).await;
    assert_eq!(unfenced, Err(RegisterError::Full { key: "limits.instances", limit: 4 }), "full, not fenced");
}

async fn bytes_of_instances_are_bounded(backend: &dyn Backend) {
    let large = |id, bytes: usize| Instance { boot_id: "x".repeat(bytes), ..instance(id) };
    let epoch = backend.register(large(1, 1000), HERE).await.unwrap();
    let full = Err(RegisterError::Full { key: "limits.instance_bytes", limit: 2000 });
    assert_eq!(backend.register(large(2, 1000), HERE).await, full);
    assert_eq!(backend.register(large(1, 3000), HERE).await, full, "one that grows, too");
    backend.release(InstanceId(1), epoch).await.unwrap();
    backend.register(large(2, 1000), HERE).await.unwrap();
    assert_eq!(Follower::new(backend).await.leased(1), None);
    assert!(backend.usage().instance_bytes <= 2000);
}

async fn changes_add_up(backend: &dyn Backend, listed: &[InstanceId]) {
    let mut quick = Follower::new(backend).await;
    let slow = backend.changes();
    assert_eq!(quick.instances.keys().copied().collect::<Vec<_>>(), listed);
    for _ in 0..20 {
        backend.register(instance(1), HERE).await.unwrap();
        backend.register(instance(1), THERE).await.unwrap();
        backend.set_status(InstanceId(1), Status::Draining).await.unwrap();
        quick
            .until(|it| it.instances.get(&InstanceId(1)).is_some_and(|(it, _)| it.status == Status::Draining))
            .await;
    }
    backend.register(instance(2), HERE).await.unwrap();
    quick.until(|it| it.leased(2).is_some()).await;
    let mut slow = Follower::on(slow).await;
    slow.until(|it| it.leased(2).is_some()).await;
    assert_eq!(slow.instances, quick.instances);
}

fn facts(name: &str, block_size: u32, artifacts: Vec<Digest>) -> (CardFacts, Bytes) {
    let content = Bytes::from(format!("{name} {block_size} {}", "x".repeat(300)));
    let kv_identity = KvIdentity(name.as_bytes().to_vec());
    (
        CardFacts {
            digest: Digest::of(&content),
            kv_identity,
            block_size: BlockSize(block_size),
            artifacts,
            tags: vec!["model-tiny".to_owned()],
        },
        content,
    )
}

async fn one_block_size_for_one_model(backend: &dyn Backend) {
    let (small, small_bytes) = facts("model", 16, vec![]);
    let (large, large_bytes) = facts("model", 32, vec![]);
    let worker = |id, card: &CardFacts| Instance { card: Some(card.digest), ..instance(id) };
    let unknown = backend.register(worker(1, &small), HERE).await;
    assert_eq!(unknown, Err(RegisterError::CardUnknown(small.digest)));
    backend.put_card(small.clone(), small_bytes).await.unwrap();
    backend.put_card(large.clone(), large_bytes).await.unwrap();
    let epoch = backend.register(worker(1, &small), HERE).await.unwrap();
    let refused = Err(RegisterError::BlockSizeMismatch { asked: BlockSize(32), present: BlockSize(16) });
    assert_eq!(backend.register(worker(2, &large), THERE).await, refused);
    let elsewhere = Instance { namespace: Namespace("other".into()), ..worker(3, &large) };
    backend.register(elsewhere, HERE).await.unwrap();
    backend.release(InstanceId(1), epoch).await.unwrap();
    backend
        .register(worker(2, &large), THERE)
        .await
        .expect("a dead fleet does not forbid another block size");
}

async fn blobs_are_kept_within_bounds(backend: &dyn Backend) {
    let artifact = Bytes::from(vec![1; 600]);
    let digest = Digest::of(&artifact);
    let (card, bytes) = facts("model", 16, vec![digest]);
    assert_eq!(backend.card(card.digest).await.unwrap(), None);
    backend.put_card(card.clone(), bytes.clone()).await.unwrap();
    assert_eq!(backend.card(card.digest).await.unwrap(), Some(bytes));
    backend.put_artifact(digest, artifact.clone()).await.unwrap();
    backend.register(Instance { card: Some(card.digest), ..instance(1) }, HERE).await.unwrap();
    let other = Bytes::from(vec![2; 600]);
    let refused = backend.put_artifact(Digest::of(&other), other.clone()).await;
    assert!(matches!(refused, Err(PutError::NoRoom(_))));
    assert_eq!(backend.artifact(digest).await.unwrap(), Some(artifact), "in use");
    for block_size in 1..10 {
        let (unused, bytes) = facts("unused", block_size, vec![]);
        backend.put_card(unused, bytes).await.unwrap();
        assert!(backend.usage().card_bytes <= limits().card_bytes);
    }
    assert!(backend.card(card.digest).await.unwrap().is_some(), "in use");
    backend.deregister(InstanceId(1)).await.unwrap();
    backend.put_artifact(Digest::of(&other), other).await.unwrap();
    assert_eq!(backend.artifact(digest).await.unwrap(), None);
}

async fn leaders_are_fenced_by_terms(backend: &dyn Backend) {
    let ttl = Duration::from_secs(10);
    let first = backend.campaign("a", InstanceId(1), ttl).await.unwrap();
    assert_eq!(backend.campaign("a", InstanceId(2), ttl).await.unwrap(), first);
    backend.resign("a", InstanceId(1), Term(first.term.0 - 1)).await.unwrap();
    assert_eq!(backend.campaign("a", InstanceId(2), ttl).await.unwrap(), first);
    backend.resign("a", InstanceId(1), first.term).await.unwrap();
    let second = backend.campaign("a", InstanceId(2), ttl).await.unwrap();
    assert!(second.leader == InstanceId(2) && second.term > first.term);
    backend.campaign("b", InstanceId(1), ttl).await.unwrap();
    let full = backend.campaign("c", InstanceId(1), ttl).await;
    assert!(matches!(full, Err(CampaignError::TooManyNames(_))));
    let renewed = Instant::now();
    backend.campaign("a", InstanceId(2), ttl).await.unwrap();
    let third = loop {
        let answer = backend.campaign("a", InstanceId(1), ttl).await.unwrap();
        if answer != second {
            break answer;
        }
        sleep(Duration::from_millis(500)).await;
    };
    assert!(renewed.elapsed() >= ttl, "nobody loses leadership before its time is up");
    assert!(third.leader == InstanceId(1) && third.term > second.term);
}

/// What the changes of a backend add up to.
struct Follower {
    changes: BoxStream<'static, Change>,
    instances: BTreeMap<InstanceId, (Arc<Instance>, bool)>,
}

impl Follower {
    async fn new(backend: &dyn Backend) -> Self {
        Self::on(backend.changes()).await
    }

    async fn on(changes: BoxStream<'static, Change>) -> Self {
        let mut it = Self { changes, instances: BTreeMap::new() };
        it.next().await;
        it
    }

    async fn next(&mut self) {
        match self.changes.next().await.unwrap() {
            Change::Snapshot { instances, .. } => {
                self.instances = instances.into_iter().map(|(it, leased)| (it.id, (it, leased))).collect();
            }
            Change::Put { instance, leased } => {
                self.instances.insert(instance.id, (instance, leased));
            }
            Change::Gone { id, .. } => {
                self.instances.remove(&id);
            }
            Change::Unreachable => {}
        }
    }

    async fn until(&mut self, wanted: impl Fn(&Self) -> bool) {
        while !wanted(self) {
            self.next().await;
        }
    }

    fn leased(&self, id: u64) -> Option<bool> {
        self.instances.get(&InstanceId(id)).map(|(_, leased)| *leased)
    }
}
