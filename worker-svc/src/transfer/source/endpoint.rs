//! Sources in a pool of host memory.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::core::SourceCore;
use super::session::SourceSession;
use crate::kv_memory::KvMemory;
use crate::transfer::ids::{BootId, Incarnation};
use crate::transfer::message::{Acceptance, Offer};
use crate::transfer::port::SourceEndpoint;
use crate::transfer::reason::{AcceptError, Failure, OpenError, ShmRefusal};
use crate::transfer::registry::Registry;
use crate::transfer::shm::exporter::{self, Counter, Socket};
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
    /// Peers at the pool's socket, at a time; more wait in the kernel's backlog.
    pub max_visitors: usize,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            max_transfers: 1024,
            handshake_timeout: Duration::from_secs(5),
            max_frame_bytes: 4 << 20,
            max_visitors: 64,
        }
    }
}

/// Where this worker hands out its pool to peers on its host.
#[derive(Debug, Clone)]
pub struct ShmExport {
    /// Directory of the sockets, the same for all workers of the host.
    pub directory: PathBuf,
    /// This host.
    pub boot_id: BootId,
    /// This life of this worker: names the socket.
    pub incarnation: Incarnation,
}

/// The source side of the host-memory transports. Dropping it ends its transfers.
#[derive(Debug)]
pub struct HostSource {
    kv: Arc<KvMemory>,
    options: SourceOptions,
    sources: Arc<Registry<SourceCore>>,
    shm: Option<ShmExport>,
    closing: CancellationToken,
    _close_on_drop: DropGuard,
    tasks: TaskTracker,
}

impl HostSource {
    /// Begins to accept offers for KV of `kv`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// What binding the pool's socket answers.
    pub fn start(kv: Arc<KvMemory>, options: SourceOptions, shm: Option<ShmExport>) -> io::Result<Self> {
        let closing = CancellationToken::new();
        let tasks = TaskTracker::new();
        let sources = Arc::new(Registry::new(options.max_transfers));
        if let Some(ShmExport { directory, incarnation, .. }) = &shm {
            let socket = Socket::bind(directory, *incarnation)?;
            let counter = Counter {
                sources: Arc::clone(&sources),
                places: Arc::new(Semaphore::new(options.max_visitors)),
                handshake_timeout: options.handshake_timeout,
            };
            tasks.spawn(exporter::serve(socket, counter, closing.clone(), tasks.clone()));
        }
        let close_on_drop = closing.clone().drop_guard();
        Ok(Self { kv, options, sources, shm, closing, _close_on_drop: close_on_drop, tasks })
    }

    /// The incarnation whose socket D may use, or why it may not.
    fn exported_to(&self, peer: Option<BootId>) -> Result<Incarnation, ShmRefusal> {
        match (peer, &self.shm) {
            (Some(peer), Some(ours)) if peer == ours.boot_id => Ok(ours.incarnation),
            (Some(_), Some(_)) => Err(ShmRefusal::OtherHost),
            _ => Err(ShmRefusal::NotConfigured),
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
        let asked = shm.is_some();
        let exported = self.exported_to(shm);
        let acceptance = match exported {
            Ok(incarnation) => Acceptance::Shm { incarnation },
            Err(refusal) if tcp.is_none() => return Err(AcceptError::NoTransport(refusal)),
            Err(refusal) => Acceptance::Tcp { shm_refused: asked.then_some(refusal) },
        };
        let kv = Arc::clone(&self.kv);
        let core = Arc::new(SourceCore::new(transfer, secret, tokens, kv, exported.is_ok()));
        self.sources.insert(transfer, Arc::clone(&core))?;
        let sources = Arc::clone(&self.sources);
        self.tasks.spawn(watch(Arc::clone(&core), sources, deadline, self.closing.clone()));
        let destination = tcp.map(|address| Destination {
            address,
            handshake_timeout: self.options.handshake_timeout,
            max_frame_bytes: self.options.max_frame_bytes,
        });
        Ok((acceptance, SourceSession::new(core, destination, self.tasks.clone())))
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
