//! The backend away, and back with everything or with nothing.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1::InstanceStatus;
use armature_contracts::error::Reason;
use armature_contracts::ids::InstanceId;
use armature_discovery::adapters::memory::Memory;
use armature_discovery::config::Config;
use armature_discovery::domain::instance::{CardFacts, Digest, Instance, LeaseEpoch, ReplicaId, Status};
use armature_discovery::domain::leaders::{Leadership, Term};
use armature_discovery::domain::store::{Change, ChangeError, RegisterError, Usage};
use armature_discovery::ports::{Backend, CampaignError, PutError, Unreachable};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;

use crate::fleet::{Fleet, Lease, View, pass, register, router};

/// A memory backend behind a link that can be cut and lead elsewhere when it is mended.
struct Link {
    far: watch::Sender<Option<Memory>>,
}

fn memory(base: u64) -> Memory {
    let settings = Config::default().validate().unwrap();
    Memory::new(settings.limits, base, settings.changes)
}

impl Link {
    fn to(memory: Memory) -> Arc<Self> {
        Arc::new(Self { far: watch::Sender::new(Some(memory)) })
    }

    fn set(&self, far: Option<Memory>) {
        self.far.send_replace(far);
    }

    fn far(&self) -> Result<Memory, Unreachable> {
        self.far.borrow().clone().ok_or(Unreachable)
    }
}

#[tonic::async_trait]
impl Backend for Link {
    fn changes(&self) -> BoxStream<'static, Change> {
        let turns = stream::unfold((self.far.subscribe(), true), |(mut far, first)| async move {
            if !first {
                far.changed().await.ok()?;
            }
            let now = far.borrow_and_update().clone();
            let mut cut = far.clone();
            let turn = match now {
                Some(memory) => memory.changes().take_until(async move { cut.changed().await }).boxed(),
                None => stream::iter([Change::Unreachable]).boxed(),
            };
            Some((turn, (far, false)))
        });
        turns.flatten().boxed()
    }

    async fn register(&self, instance: Instance, replica: ReplicaId) -> Result<LeaseEpoch, RegisterError> {
        self.far().map_err(|_| RegisterError::Unreachable)?.register(instance, replica).await
    }

    async fn renew(
        &self,
        replica: ReplicaId,
        leases: &[(InstanceId, LeaseEpoch)],
    ) -> Result<Vec<InstanceId>, Unreachable> {
        self.far()?.renew(replica, leases).await
    }

    async fn set_status(&self, id: InstanceId, status: Status) -> Result<(), ChangeError> {
        self.far().map_err(|_| ChangeError::Unreachable)?.set_status(id, status).await
    }

    async fn deregister(&self, id: InstanceId) -> Result<(), ChangeError> {
        self.far().map_err(|_| ChangeError::Unreachable)?.deregister(id).await
    }

    async fn bury(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable> {
        self.far()?.bury(id, epoch).await
    }

    async fn release(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable> {
        self.far()?.release(id, epoch).await
    }

    async fn put_card(&self, facts: CardFacts, content: Bytes) -> Result<(), PutError> {
        self.far()?.put_card(facts, content).await
    }

    async fn card(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable> {
        self.far()?.card(digest).await
    }

    async fn put_artifact(&self, digest: Digest, content: Bytes) -> Result<(), PutError> {
        self.far()?.put_artifact(digest, content).await
    }

    async fn artifact(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable> {
        self.far()?.artifact(digest).await
    }

    async fn campaign(
        &self,
        name: &str,
        candidate: InstanceId,
        ttl: Duration,
    ) -> Result<Leadership, CampaignError> {
        self.far()?.campaign(name, candidate, ttl).await
    }

    async fn resign(&self, name: &str, candidate: InstanceId, term: Term) -> Result<(), Unreachable> {
        self.far()?.resign(name, candidate, term).await
    }

    fn usage(&self) -> Usage {
        self.far().map(|memory| memory.usage()).unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_backend_is_away_the_view_stands() {
    let far = memory(1);
    let link = Link::to(far.clone());
    let server = Fleet::new().replica("discovery", link.clone()).await;
    let client = server.client();
    let lease = Lease::open(&client, &router(1)).await;
    let dead = Lease::open(&client, &router(2)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1, 2]).await;
    pass(31).await;

    link.set(None);
    drop(dead);
    let revision = view.revision;
    view.during(Duration::from_secs(90)).await;
    assert_eq!(view.revision, revision, "three TTLs without the backend change nothing");
    let refused = register(&mut server.client(), &router(3)).await.unwrap_err();
    assert!(refused.reason == Reason::BackendUnreachable && refused.retryable);

    let epoch = lease.epoch();
    link.set(Some(far));
    view.until(|view| view[&2].status() == InstanceStatus::Suspect).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
    assert!(lease.epoch() > epoch, "its lease had run out in the backend, and it has a new one");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_comes_back_empty_is_filled_again_under_the_same_ids() {
    let link = Link::to(memory(1));
    let server = Fleet::new().replica("discovery", link.clone()).await;
    let client = server.client();
    let mut leases = Vec::new();
    for id in 1..=5 {
        leases.push(Lease::open(&client, &router(id)).await);
    }
    let mut view = View::open(&client).await;
    view.until(|view| view.len() == 5).await;
    pass(31).await;

    link.set(None);
    pass(30).await;
    link.set(Some(memory(1)));
    for lease in &mut leases {
        lease.registered_again().await;
    }
    let statuses = |view: &View| (1..=5).map(|id| view.status(id)).collect::<Vec<_>>();
    let (end, mut seen) = (tokio::time::Instant::now() + Duration::from_secs(120), Vec::new());
    while let Ok(true) = tokio::time::timeout_at(end, view.next()).await {
        seen.push(statuses(&view));
    }
    let ready = vec![InstanceStatus::Ready; 5];
    assert!(seen.iter().all(|seen| *seen == ready), "nobody left and nobody was doubted");
    for (id, lease) in (1..=5).zip(&leases) {
        assert_eq!(view.instances[&id].lease_epoch, lease.epoch());
    }
}
