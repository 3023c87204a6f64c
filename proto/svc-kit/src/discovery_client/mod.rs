//! The client side of discovery: keep an instance registered, and know who else is there.
//!
//! [`Discovery`] talks to whichever discovery endpoint answers. [`Discovery::register`] gives a
//! [`Registrar`] to run and a [`Registration`] to steer it; [`Discovery::watch`] gives a
//! [`Watcher`] to run and [`Members`] to read. With discovery away nothing here fails: a
//! registration tries again, a view stands.

mod blobs;
mod instance;
mod last_good;
mod membership;
mod metrics;
mod probe;
mod registrar;
mod watcher;

pub use blobs::{BlobError, ModelCardBytes};
pub use instance::{Component, Digest, Instance, Status};
pub use last_good::LastGoodError;
pub use membership::{Applied, Change, Membership, PROBE_LIMIT, View};
pub use probe::{PROBE_TIMEOUT, Probe, health_probe};
pub use registrar::{Published, Registrar, Registration, RegistrationOptions};
pub use watcher::{Members, WatchOptions, Watcher};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use armature_contracts::discovery::v1::discovery_service_client::DiscoveryServiceClient;
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tonic::{Code, Status as GrpcStatus};

use crate::address::Address;
use crate::channel::{Channel, Channels};
use crate::limited;

/// First and longest pause after every endpoint has failed.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Longest wait for one endpoint's answer before the next is asked.
const ANSWER: Duration = Duration::from_secs(5);

/// The generated client over a kit channel.
pub type Client = DiscoveryServiceClient<Channel>;

/// The discovery endpoints of a deployment. Cheap to clone; clones share which one answers.
#[derive(Clone, Debug)]
pub struct Discovery {
    channels: Channels,
    endpoints: Arc<[Address]>,
    current: Arc<AtomicUsize>,
}

/// Which endpoint was asked, as a count of turns.
#[derive(Clone, Copy, Debug)]
struct Turn(usize);

/// A discovery client needs somewhere to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no discovery endpoint is configured")]
pub struct NoEndpoint;

impl Discovery {
    /// A client that tries `endpoints` in turn and stays with the one that answers.
    pub fn new(channels: Channels, endpoints: Vec<Address>) -> Result<Self, NoEndpoint> {
        if endpoints.is_empty() {
            return Err(NoEndpoint);
        }
        Ok(Self { channels, endpoints: endpoints.into(), current: Arc::default() })
    }

    /// Begins at another endpoint than the first; by something of its own, such as its id, each instance of a service takes another one.
    #[must_use]
    pub fn beginning_at(self, turn: u64) -> Self {
        let first = turn % self.endpoints.len() as u64;
        self.current.store(usize::try_from(first).unwrap_or(0), Ordering::Relaxed);
        self
    }

    /// A client of the endpoint in use, for calls this module has no method for.
    pub fn client(&self) -> Client {
        self.endpoint().1
    }

    fn endpoint(&self) -> (Turn, Client) {
        let turn = self.current.load(Ordering::Relaxed);
        let address = &self.endpoints[turn % self.endpoints.len()];
        (Turn(turn), limited!(DiscoveryServiceClient::new(self.channels.to(address))))
    }

    /// Turns to the next endpoint, unless somebody who shares this client has done so already.
    fn leave(&self, Turn(turn): Turn) {
        let next = turn.wrapping_add(1);
        let _ = self.current.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Turns to the next endpoint although this one answers, over a new connection when it comes to its turn again.
    fn age(&self, turn: Turn) {
        self.channels.forget(&self.endpoints[turn.0 % self.endpoints.len()]);
        self.leave(turn);
    }

    /// Makes one unary call, at each endpoint once until one answers; refusals are answers.
    pub async fn call<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, GrpcStatus>
    where
        F: Future<Output = Result<tonic::Response<T>, GrpcStatus>> + Send,
    {
        let mut last = GrpcStatus::unavailable("no discovery endpoint answers");
        for _ in 0..self.endpoints.len() {
            let (turn, client) = self.endpoint();
            match tokio::time::timeout(ANSWER, call(client)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) if !is_away(&status) => return Err(status),
                Ok(Err(status)) => last = status,
                Err(_) => last = GrpcStatus::unavailable("discovery does not answer in time"),
            }
            self.leave(turn);
        }
        Err(last)
    }
}

/// True when another endpoint may do better.
fn is_away(status: &GrpcStatus) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded)
}

/// Paces attempts: the next endpoint at once, a growing pause after each round.
struct Rounds {
    size: usize,
    failed: usize,
    pauses: ExponentialBackoff,
}

impl Rounds {
    fn new(discovery: &Discovery) -> Self {
        Self { size: discovery.endpoints.len(), failed: 0, pauses: pauses() }
    }

    fn succeeded(&mut self) {
        self.failed = 0;
        self.pauses = pauses();
    }

    async fn failed(&mut self) {
        self.failed += 1;
        if self.failed.is_multiple_of(self.size) {
            tokio::time::sleep(self.pauses.next().unwrap_or(PAUSE.1)).await;
        }
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(PAUSE.0)
        .with_max_delay(PAUSE.1)
        .without_max_times()
        .with_jitter()
        .build()
}
