//! What the frontend needs from the outside, in its own words.

use armature_contracts::error::Fault;
use armature_contracts::ids::{ReservationKey, WorkerRank};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use jiff::ZonedDateTime;
use tokio::time::Instant;

use crate::domain::digest::Digest;
use crate::domain::leg::{Failure, LegPlan};
use crate::domain::text::Token;
use crate::session::prepare::Prepared;

/// Fetches what cards and registrations name by digest.
pub trait ArtifactSource: Send + Sync + 'static {
    /// Bytes of a model card. Not verified.
    fn card(&self, digest: &Digest) -> BoxFuture<'static, Result<Bytes, Fault>>;
    /// Bytes of an artifact. Not verified.
    fn artifact(&self, digest: &Digest) -> BoxFuture<'static, Result<Bytes, Fault>>;
}

/// Decides which workers run a leg.
pub trait Routing: Send + Sync + 'static {
    /// Asks the routers in their order until one answers. Until `queue_until` it may wait there for a worker that has room.
    fn route(
        &self,
        request: &Prepared,
        plan: &LegPlan,
        queue_until: Instant,
    ) -> BoxFuture<'static, Result<Decision, Fault>>;
    /// Ends a reservation that `router` made. Best effort, does not wait.
    fn release(&self, key: ReservationKey, router: &str);
}

/// Talks to workers.
pub trait Workers: Send + Sync + 'static {
    /// Starts a leg where `decision` says. Dropping the future or the stream cancels the work.
    fn generate(
        &self,
        request: &Prepared,
        plan: &LegPlan,
        decision: &Decision,
    ) -> BoxFuture<'static, Result<WorkerStream, Failure>>;
    /// Nothing more is wanted of `choice`, while others of `leg` go on at `worker`. Best effort, does not wait.
    fn end_choice(&self, worker: &Target, leg: ReservationKey, choice: u32);
}

/// What a worker says, in order.
pub type WorkerStream = BoxStream<'static, Result<WorkerEvent, Failure>>;

/// Time of day, for templates.
pub trait Calendar: Send + Sync + 'static {
    /// Now, in the zone of the service.
    fn now(&self) -> ZonedDateTime;
}

/// Random numbers: reservation ids, seeds, request ids.
pub trait Entropy: Send + Sync + 'static {
    /// 128 random bits.
    fn bits(&self) -> u128;
}

/// Who runs a leg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Generates.
    pub decode: Target,
    /// Prefill workers in order; empty: the decode worker prefills.
    pub prefill: Vec<Target>,
    /// The decode worker must not prefill.
    pub local_prefill_forbidden: bool,
    /// Names the decision for explanations.
    pub decision_id: String,
    /// Address of the router that holds the reservation.
    pub router: String,
}

/// A worker and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Which.
    pub worker: WorkerRank,
    /// Its gRPC address.
    pub address: String,
}

/// One message of a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerEvent {
    /// Admitted.
    Started {
        /// Prompt tokens found in its cache.
        cached_tokens: u32,
    },
    /// Tokens of one choice.
    Tokens {
        /// Which choice.
        choice: u32,
        /// Index of the first of them among those generated for the choice.
        position: u32,
        /// The tokens.
        tokens: Vec<Token>,
        /// On the last message of the choice.
        end: Option<End>,
    },
    /// Everything is said.
    Finished(Phases),
}

/// Why a worker ended a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// An end token or stop token.
    Stop,
    /// The limit of tokens.
    Length,
    /// To be continued by another worker.
    Migrate,
    /// Cancelled there, though not by us.
    Cancelled,
    /// The engine failed.
    Failed,
}

/// Prompt tokens by what happened to them, in the last attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// Found in the decode worker's cache.
    pub cached: u32,
    /// Received.
    pub transferred: u32,
    /// Computed by the decode worker.
    pub computed: u32,
    /// Computed by the prefill worker.
    pub remote_computed: u32,
}

impl Phases {
    /// Found in a cache, here or at the prefill worker: what OpenAI calls cached.
    pub fn reused(&self) -> u32 {
        self.cached + self.transferred.saturating_sub(self.remote_computed)
    }
}
