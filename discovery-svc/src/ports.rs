//! What the service needs from outside: one backend that keeps the state of all replicas.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;

use crate::domain::blobs::NoRoom;
use crate::domain::instance::{CardFacts, Digest, Instance, InstanceId, LeaseEpoch, ReplicaId, Status};
use crate::domain::leaders::{Leadership, Term, TooManyNames};
use crate::domain::store::{Change, ChangeError, RegisterError, Usage};

/// The backend does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend is unreachable")]
pub struct Unreachable;

/// Why a card or artifact was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// No room.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The backend does not answer.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
}

/// Why nobody leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CampaignError {
    /// No room for another name.
    #[error(transparent)]
    TooManyNames(#[from] TooManyNames),
    /// The backend does not answer.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
}

/// Keeps instances with their leases, tombstones, cards, artifacts and leaders for every replica.
///
/// Each operation is atomic and answers, or says that it cannot, within about a second. What it promises is written at [`crate::domain::store::Store`] and checked on every implementation by one
/// suite (`tests/it/backend.rs`).
#[tonic::async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The whole state, then every change in order; after any doubt (it was unreachable, the reader was too slow) a snapshot again. Bounded
    /// by the backend; never ends.
    fn changes(&self) -> BoxStream<'static, Change>;

    /// Opens or takes over the lease of an instance for `replica`. The epoch stays when the replica holds it already, otherwise it grows.
    async fn register(&self, instance: Instance, replica: ReplicaId) -> Result<LeaseEpoch, RegisterError>;

    /// Renews leases of `replica`; answers those that it does not hold any more. Called at least every third of the lease TTL, also
    /// without leases.
    async fn renew(
        &self,
        replica: ReplicaId,
        leases: &[(InstanceId, LeaseEpoch)],
    ) -> Result<Vec<InstanceId>, Unreachable>;

    /// Publishes a status.
    async fn set_status(&self, id: InstanceId, status: Status) -> Result<(), ChangeError>;

    /// An instance said that it is gone; its id is fenced, known or not.
    async fn deregister(&self, id: InstanceId) -> Result<(), ChangeError>;

    /// The holder of the lease judged its instance lost; without effect once there is a higher epoch.
    async fn bury(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable>;

    /// The holder of the lease doubts its instance, which stays, unleased; without effect once there is a higher epoch.
    async fn release(&self, id: InstanceId, epoch: LeaseEpoch) -> Result<(), Unreachable>;

    /// Keeps a verified card.
    async fn put_card(&self, facts: CardFacts, content: Bytes) -> Result<(), PutError>;

    /// The bytes of a card.
    async fn card(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable>;

    /// Keeps a verified artifact.
    async fn put_artifact(&self, digest: Digest, content: Bytes) -> Result<(), PutError>;

    /// The bytes of an artifact.
    async fn artifact(&self, digest: Digest) -> Result<Option<Bytes>, Unreachable>;

    /// Asks for or renews leadership of a name.
    async fn campaign(
        &self,
        name: &str,
        candidate: InstanceId,
        ttl: Duration,
    ) -> Result<Leadership, CampaignError>;

    /// Gives leadership up, if it is the candidate's in this term.
    async fn resign(&self, name: &str, candidate: InstanceId, term: Term) -> Result<(), Unreachable>;

    /// How full it is, for metrics.
    fn usage(&self) -> Usage;

    /// Why it cannot be reached or does not do what it should, for people.
    fn trouble(&self) -> Option<String> {
        None
    }
}
