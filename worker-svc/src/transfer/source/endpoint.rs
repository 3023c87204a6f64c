//! Sources in a pool of host memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::core::SourceCore;
use super::session::SourceSession;
use crate::kv_memory::KvMemory;
use crate::transfer::message::{Acceptance, Offer};
use crate::transfer::port::SourceEndpoint;
use crate::transfer::reason::{AcceptError, Failure, OpenError, ShmRefusal};
use crate::transfer::registry::Registry;
use crate::transfer::tcp::sender::Destination;

/// Bounds of a source endpoint.
#[derive(Debug, Clone, Copy)]
pub struct SourceOptions {
    /// Transfers open at a time.
    pub max_transfers: usize,
    /// Time to connect to a landing, and again to prove the secret.
    pub handshake_timeout: Duration,
    /// Largest payload of a frame, where that is more than one token of one layer.
    pub max_frame_bytes: u64,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self { max_transfers: 1024, handshake_timeout: Duration::from_secs(5), max_frame_bytes: 4 << 20 }
    }
}

/// The source side of the host-memory transports. Dropping it ends its transfers.
#[derive(Debug)]
pub struct HostSource {
    kv: Arc<KvMemory>,
    options: SourceOptions,
    sources: Arc<Registry<SourceCore>>,
    closing: CancellationToken,
    _close_on_drop: DropGuard,
    tasks: TaskTracker,
}

impl HostSource {
    /// Begins to accept offers for KV of `kv`.
    pub fn start(kv: Arc<KvMemory>, options: SourceOptions) -> Self {
        let closing = CancellationToken::new();
        Self {
            kv,
            options,
            sources: Arc::new(Registry::new(options.max_transfers)),
            _close_on_drop: closing.clone().drop_guard(),
            closing,
            tasks: TaskTracker::new(),
        }
    }

    /// Transfers that are open.
    pub fn open_transfers(&self) -> usize {
        self.sources.len()
    }

    /// Ends all transfers and waits until nothing here reads the pool for them.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl SourceEndpoint for HostSource {
    fn accept(&self, offer: Offer, deadline: Instant) -> Result<(Acceptance, SourceSession), AcceptError> {
        let Offer { transfer, secret, tokens, tcp, shm } = offer;
        if self.closing.is_cancelled() {
            return Err(OpenError::Closed.into());
        }
        if tokens.is_empty() {
            return Err(OpenError::Empty.into());
        }
        let shm_refused = shm.map(|_| ShmRefusal::NotConfigured);
        if tcp.is_none() {
            return Err(AcceptError::NoTransport(shm_refused.unwrap_or(ShmRefusal::NotConfigured)));
        }
        let core = Arc::new(SourceCore::new(transfer, secret, tokens, Arc::clone(&self.kv)));
        self.sources.insert(transfer, Arc::clone(&core))?;
        let sources = Arc::clone(&self.sources);
        self.tasks.spawn(watch(Arc::clone(&core), sources, deadline, self.closing.clone()));
        let destination = tcp.map(|address| Destination {
            address,
            handshake_timeout: self.options.handshake_timeout,
            max_frame_bytes: self.options.max_frame_bytes,
        });
        let session = SourceSession::new(core, false, destination, self.tasks.clone());
        Ok((Acceptance::Tcp { shm_refused }, session))
    }
}

/// Ends a source at its deadline or with its endpoint, and forgets it when it is over.
async fn watch(
    core: Arc<SourceCore>,
    sources: Arc<Registry<SourceCore>>,
    deadline: Instant,
    closing: CancellationToken,
) {
    tokio::select! {
        () = core.ended.cancelled() => {}
        () = sleep_until(deadline) => core.fail(Failure::Deadline),
        () = closing.cancelled() => core.fail(Failure::Closed),
    }
    sources.remove(core.transfer);
}
