//! The backend in Consul, for any number of replicas.
//!
//! Each replica keeps a [`Store`](crate::domain::store::Store) that is the truth for the leases held through it. [`writer`] writes it through
//! the replica's agent, [`follow`] reads what the others have written, and the store merges that. So whatever happens to Consul, a replica
//! goes on with what it has: a registration while Consul is away is accepted and written later, and a Consul that comes back empty is
//! filled again before any instance is asked.
//!
//! What lies where is at [`names`]; why, in `docs/adr`.

pub mod agent;
pub mod blobs;
mod changes;
pub mod client;
pub mod entry;
pub mod fences;
pub mod follow;
pub mod kv;
pub mod leaders;
pub mod link;
pub mod metrics;
pub mod names;
pub mod plan;
mod restore;
pub mod settings;
pub mod tickets;
mod tls;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use armature_svc_kit::drain::Drain;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::agent::Agent;
use self::blobs::{BlobError, Kind};
use self::client::{Ask, CallError, Client};
use self::fences::Known;
use self::leaders::{ElectionError, Leaders};
use self::link::Link;
use self::metrics::ConsulMetrics;
use self::names::Names;
use self::settings::{ConsulSettings, SettingsError};
use self::tickets::Tickets;
use self::writer::Writer;
use super::card;
use super::memory::Memory;
use crate::domain::instance::{
    CardFacts, Component, Digest, Instance, InstanceId, LeaseEpoch, ReplicaId, Status,
};
use crate::domain::leaders::{Leadership, Term};
use crate::domain::store::elsewhere::Own;
use crate::domain::store::{Change, ChangeError, Limits, RegisterError, Usage};
use crate::ports::{Backend, CampaignError, PutError, Unreachable};

/// Longest wait until what was changed is written; after it, it is written later.
const SETTLE: Duration = Duration::from_secs(1);
/// What is followed: each component, and the fences.
const TOPICS: usize = Component::ALL.len() + 1;

/// One replica's side of a shared Consul. Clones share it; [`Consul::run`] makes it work.
#[derive(Clone, Debug)]
pub struct Consul {
    memory: Memory,
    agent: Agent,
    link: Arc<Link>,
    tickets: Arc<Tickets>,
    leaders: Arc<Leaders>,
    limits: Limits,
    metrics: ConsulMetrics,
}

impl Consul {
    /// A backend that has not looked for Consul yet; `base` and `changes` as in [`Memory::new`].
    pub fn new(
        settings: &ConsulSettings,
        limits: Limits,
        base: u64,
        changes: usize,
        metrics: ConsulMetrics,
    ) -> Result<Self, SettingsError> {
        let agent = Agent {
            client: Client::new(settings, metrics.clone())?,
            names: Names::new(&settings.prefix),
            ttl: settings.ttl,
            fences: Arc::new(Known::new(limits.tombstones)),
        };
        Ok(Self {
            memory: Memory::new(limits, base, changes),
            agent,
            link: Arc::new(Link::new(TOPICS, metrics.clone())),
            tickets: Arc::default(),
            leaders: Arc::new(Leaders::new(limits.leaders)),
            limits,
            metrics,
        })
    }

    /// Works until the service stops.
    pub async fn run(self, drain: Drain) {
        let writer = Writer {
            agent: self.agent.clone(),
            memory: self.memory.clone(),
            link: self.link.clone(),
            tickets: self.tickets.clone(),
            metrics: self.metrics.clone(),
        };
        let looked = self.agent.names.fence(InstanceId(0));
        let components = Component::ALL.map(|component| self.follow(component));
        tokio::select! {
            () = self.link.look(&self.agent.client, &looked) => {}
            _ = futures_util::future::join_all(components) => {}
            () = self.follow_fences() => {}
            () = writer.run() => {}
            () = restore::run(&self.agent, &self.memory, &self.link, self.limits) => {}
            () = drain.stopping() => {}
        }
    }

    async fn follow(&self, component: Component) {
        let Self { memory, agent, link, metrics, .. } = self;
        let ask = Ask::get("health", format!("/v1/health/service/{}", agent.names.service(component)));
        follow::follow(
            &agent.client,
            link,
            component.as_str(),
            ask,
            entry::of_health,
            |(entries, foreign)| {
                metrics.foreign.inc_by(foreign as u64);
                memory.with(|store, now| store.observe(component, entries, now));
            },
        )
        .await;
    }

    async fn follow_fences(&self) {
        let Self { memory, agent, link, .. } = self;
        let ask = Ask::get("fences", kv::path(&agent.names.fences())).with("recurse", true);
        follow::follow(&agent.client, link, "gone", ask, fences::read, |fences| {
            let gone = agent.fences.take(fences);
            memory.with(|store, now| store.observe_gone(&gone, now));
        })
        .await;
    }

    /// Waits until everything has been read from Consul.
    pub async fn until_in_sight(&self) {
        self.link.until_in_sight().await;
    }

    async fn settle(&self) {
        // Too late is no failure: it is written when it can be.
        let _ = timeout(SETTLE, self.tickets.settle()).await;
    }

    fn in_sight(&self) -> Option<&Agent> {
        self.link.in_sight().map(|_| &self.agent)
    }

    fn unreachable(&self, error: &CallError) -> Unreachable {
        tracing::warn!(%error, "Consul was asked in vain");
        Unreachable
    }

    /// Fetches a card that another replica has put, so that its facts are known.
    async fn fetch_card(&self, digest: Digest) -> Result<Option<Bytes>, CallError> {
        let Some(agent) = self.in_sight() else { return Ok(None) };
        let Some(content) = blobs::get(&agent.client, &agent.names, Kind::Card, digest).await? else {
            return Ok(None);
        };
        let bytes = content.clone();
        if let Ok(Ok(facts)) = spawn_blocking(move || card::read(digest, &bytes)).await {
            // Without room it is fetched again when it is needed again.
            let _ = self.memory.with(|store, _| store.put_card(facts, content.clone()));
        }
        Ok(Some(content))
    }

    async fn put(&self, kind: Kind, digest: Digest, content: Bytes) -> Result<(), PutError> {
        let Some(agent) = self.in_sight() else { return Ok(()) };
        let (limit, in_use) = self.memory.with(|store, _| match kind {
            Kind::Card => (self.limits.card_bytes, store.shown_cards()),
            Kind::Artifact => (self.limits.artifact_bytes, store.shown_artifacts()),
        });
        match blobs::put(&agent.client, &agent.names, (kind, digest, content), limit, &in_use).await {
            Ok(()) => Ok(()),
            Err(BlobError::NoRoom(full)) => Err(full.into()),
            Err(BlobError::Call(error)) => {
                // It is kept here, and written once an instance shows it.
                self.link.complain(&error);
                Ok(())
            }
        }
    }
}

#[tonic::async_trait]
impl Backend for Consul {
    fn changes(&self) -> BoxStream<'static, Change> {
        changes::of(self.memory.clone(), self.link.clone())
    }

    async fn register(&self, instance: Instance, replica: ReplicaId) -> Result<LeaseEpoch, RegisterError> {
        let known = |digest: &Digest| self.memory.with(|store, _| store.facts_of(digest));
        if let Some(card) = instance.card
            && known(&card).is_none()
            && let Err(error) = self.fetch_card(card).await
        {
            tracing::warn!(%error, %card, "card not fetched");
        }
        let facts = instance.card.as_ref().and_then(known);
        let largest = Instance { epoch: LeaseEpoch(u64::MAX), ..instance.clone() };
        let own = Own { instance: Arc::new(largest), facts, holder: replica, leased: true };
        let size = entry::record(&own).len();
        if size > entry::MAX_RECORD_BYTES {
            return Err(RegisterError::TooLarge { size, limit: entry::MAX_RECORD_BYTES });
        }
        let epoch = self.memory.register(instance, replica).await?;
        self.settle().await;
        Ok(epoch)
    }

    async fn renew(
        &self,
        replica: ReplicaId,
        leases: &[(InstanceId, LeaseEpoch)],
    ) -> Result<Vec<InstanceId>, Unreachable> {
        self.memory.renew(replica, leases).await
    }

    async fn set_status(&self, id: InstanceId, status: Status) -> Result<(), ChangeError> {
        self.memory.set_status(id, status).await?;
        self.settle().await;
        Ok(())
    }

    async fn deregister(&self, id: InstanceId) -> Result<(), ChangeError> {
        self.memory.deregister(id).await?;
        self.settle().await;
        Ok(())
    }

    async fn bury(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable> {
        self.memory.bury(id, epoch).await
    }

    async fn release(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable> {
        self.memory.release(id, epoch).await
    }

    async fn put_card(&self, facts: CardFacts, content: Bytes) -> Result<(), PutError> {
        self.put(Kind::Card, facts.digest, content.clone()).await?;
        self.memory.put_card(facts, content).await
    }

    async fn card(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable> {
        match self.memory.card(digest).await? {
            Some(content) => Ok(Some(content)),
            None if self.in_sight().is_none() => Err(Unreachable),
            None => self.fetch_card(digest).await.map_err(|error| self.unreachable(&error)),
        }
    }

    async fn put_artifact(&self, digest: Digest, content: Bytes) -> Result<(), PutError> {
        self.put(Kind::Artifact, digest, content.clone()).await?;
        self.memory.put_artifact(digest, content).await
    }

    async fn artifact(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable> {
        if let Some(content) = self.memory.artifact(digest).await? {
            return Ok(Some(content));
        }
        let agent = self.in_sight().ok_or(Unreachable)?;
        let content = blobs::get(&agent.client, &agent.names, Kind::Artifact, digest).await;
        let content = content.map_err(|error| self.unreachable(&error))?;
        if let Some(content) = &content {
            // Without room it is fetched again when it is asked for again.
            let _ = self.memory.put_artifact(digest, content.clone()).await;
        }
        Ok(content)
    }

    async fn campaign(
        &self,
        name: &str,
        candidate: InstanceId,
        ttl: Duration,
    ) -> Result<Leadership, CampaignError> {
        let agent = self.in_sight().ok_or(Unreachable)?;
        let leadership = self.leaders.campaign(&agent.client, &agent.names, (name, candidate, ttl)).await;
        leadership.map_err(|error| match error {
            ElectionError::TooManyNames(full) => full.into(),
            ElectionError::Call(error) => self.unreachable(&error).into(),
        })
    }

    async fn resign(&self, name: &str, candidate: InstanceId, term: Term) -> Result<(), Unreachable> {
        let agent = self.in_sight().ok_or(Unreachable)?;
        let leadership = Leadership { leader: candidate, term };
        let resigned = self.leaders.resign(&agent.client, &agent.names, (name, leadership)).await;
        resigned.map_err(|error| self.unreachable(&error))
    }

    fn usage(&self) -> Usage {
        Usage { leaders: self.leaders.held(), ..self.memory.usage() }
    }

    fn trouble(&self) -> Option<String> {
        self.link.trouble()
    }
}
