//! The backend in this process's memory: for one replica, or for several in one process.
//!
//! After a restart it is empty; every instance registers again with its next heartbeat.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::domain::instance::{CardFacts, Digest, Instance, InstanceId, LeaseEpoch, ReplicaId, Status};
use crate::domain::leaders::{Leadership, Term};
use crate::domain::store::{Change, ChangeError, Limits, RegisterError, Store, Usage};
use crate::domain::time::Moment;
use crate::ports::{Backend, CampaignError, PutError, Unreachable};

/// A [`Store`] behind a lock. Clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    changes: broadcast::Sender<Change>,
    origin: Instant,
}

impl Memory {
    /// An empty backend; `base` as in [`Store::new`]. A reader may be `changes` behind before it gets a snapshot instead.
    pub fn new(limits: Limits, base: u64, changes: usize) -> Self {
        let (sender, _) = broadcast::channel(changes.max(1));
        let store = Mutex::new(Store::new(limits, base));
        Self { shared: Arc::new(Shared { store, changes: sender, origin: Instant::now() }) }
    }

    /// Does something with the store and publishes what it changed, in the order of the changes.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Store, Moment) -> T) -> T {
        let mut store = self.lock();
        let answer = act(&mut store, Moment(self.shared.origin.elapsed()));
        for change in store.take_changes() {
            // Nobody listening is no failure.
            let _ = self.shared.changes.send(change);
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.shared.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(&self) -> (Change, broadcast::Receiver<Change>) {
        let store = self.lock();
        (store.snapshot(), self.shared.changes.subscribe())
    }
}

#[tonic::async_trait]
impl Backend for Memory {
    fn changes(&self) -> BoxStream<'static, Change> {
        let start: (Self, Option<broadcast::Receiver<Change>>) = (self.clone(), None);
        stream::unfold(start, |(memory, receiver)| async move {
            let mut receiver = match receiver {
                Some(receiver) => receiver,
                None => {
                    let (snapshot, receiver) = memory.subscribe();
                    return Some((snapshot, (memory, Some(receiver))));
                }
            };
            // The sender lives in `memory`, so the only error is having been too slow.
            if let Ok(change) = receiver.recv().await {
                return Some((change, (memory, Some(receiver))));
            }
            let (snapshot, receiver) = memory.subscribe();
            Some((snapshot, (memory, Some(receiver))))
        })
        .boxed()
    }

    async fn register(&self, instance: Instance, replica: ReplicaId) -> Result<LeaseEpoch, RegisterError> {
        self.with(|store, now| store.register(instance, replica, now))
    }

    async fn renew(
        &self,
        replica: ReplicaId,
        leases: &[(InstanceId, LeaseEpoch)],
    ) -> Result<Vec<InstanceId>, Unreachable> {
        Ok(self.with(|store, now| store.renew(replica, leases, now)))
    }

    async fn set_status(&self, id: InstanceId, status: Status) -> Result<(), ChangeError> {
        self.with(|store, now| store.set_status(id, status, now))
    }

    async fn deregister(&self, id: InstanceId) -> Result<(), ChangeError> {
        self.with(|store, now| store.deregister(id, now))
    }

    async fn bury(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable> {
        self.with(|store, now| store.bury(id, epoch, now));
        Ok(())
    }

    async fn release(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable> {
        self.with(|store, now| store.release(id, epoch, now));
        Ok(())
    }

    async fn put_card(&self, facts: CardFacts, content: Bytes) -> Result<(), PutError> {
        Ok(self.with(|store, _| store.put_card(facts, content))?)
    }

    async fn card(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable> {
        Ok(self.with(|store, _| store.card(&digest)))
    }

    async fn put_artifact(&self, digest: Digest, content: Bytes) -> Result<(), PutError> {
        Ok(self.with(|store, _| store.put_artifact(digest, content))?)
    }

    async fn artifact(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable> {
        Ok(self.with(|store, _| store.artifact(&digest)))
    }

    async fn campaign(
        &self,
        name: &str,
        candidate: InstanceId,
        ttl: Duration,
    ) -> Result<Leadership, CampaignError> {
        Ok(self.with(|store, now| store.campaign(name, candidate, ttl, now))?)
    }

    async fn resign(&self, name: &str, candidate: InstanceId, term: Term) -> Result<(), Unreachable> {
        self.with(|store, _| store.resign(name, candidate, term));
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.lock().usage()
    }
}
