//! Landings in a pool of host memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::core::LandingCore;
use super::session::LandingSession;
use super::settle::Settle;
use crate::kv_memory::KvMemory;
use crate::transfer::ids::BootId;
use crate::transfer::message::Offer;
use crate::transfer::port::{LandingEndpoint, LandingRequest};
use crate::transfer::reason::{Failure, OpenError};
use crate::transfer::registry::Registry;
use crate::transfer::shm::importer::Importer;
use crate::transfer::tcp::listener::{self, Door};

/// Bounds of a landing endpoint.
#[derive(Debug, Clone, Copy)]
pub struct LandingOptions {
    /// Transfers open at a time.
    pub max_transfers: usize,
    /// Data connections that have not proven a secret, at a time; more wait in the kernel's backlog.
    pub max_unproven: usize,
    /// Time for a connection to prove its secret, and for fetching a pool.
    pub handshake_timeout: Duration,
    /// Mappings of peers' pools kept between transfers; an idle one goes after [`MAPPING_IDLE`].
    pub max_mappings: usize,
    /// Large copies out of mappings at a time, each on a blocking thread.
    pub max_copies: usize,
}

/// How long an unused mapping is kept: it holds a dead peer's memory.
pub const MAPPING_IDLE: Duration = Duration::from_secs(60);

impl Default for LandingOptions {
    fn default() -> Self {
        Self {
            max_transfers: 1024,
            max_unproven: 64,
            handshake_timeout: Duration::from_secs(5),
            max_mappings: 8,
            max_copies: 4,
        }
    }
}

/// A KV data listener, bound.
#[derive(Debug)]
pub struct TcpLanding {
    /// Where connections arrive.
    pub listener: TcpListener,
    /// `host:port` under which prefill workers reach it.
    pub advertised: String,
}

/// Where peers on this host hand out their pools.
#[derive(Debug, Clone)]
pub struct ShmLanding {
    /// Directory of the sockets, the same for all workers of the host.
    pub directory: PathBuf,
    /// This host.
    pub boot_id: BootId,
}

/// The landing side of the host-memory transports. Dropping it ends its transfers.
#[derive(Debug)]
pub struct HostLanding {
    kv: Arc<KvMemory>,
    landings: Arc<Registry<LandingCore>>,
    advertised: Option<String>,
    shm: Option<(BootId, Arc<Importer>)>,
    refused: Arc<AtomicU64>,
    closing: CancellationToken,
    _close_on_drop: DropGuard,
    tasks: TaskTracker,
}

impl HostLanding {
    /// Begins to accept transfers into `kv`. Must be called inside a tokio runtime.
    ///
    /// Of `tcp` and `shm` at least one is wanted: without both no transfer can be accepted.
    pub fn start(
        kv: Arc<KvMemory>,
        options: LandingOptions,
        tcp: Option<TcpLanding>,
        shm: Option<ShmLanding>,
    ) -> Self {
        let landings = Arc::new(Registry::new(options.max_transfers));
        let closing = CancellationToken::new();
        let tasks = TaskTracker::new();
        let refused = Arc::new(AtomicU64::new(0));
        let advertised = tcp.map(|TcpLanding { listener, advertised }| {
            let door = Door {
                landings: Arc::clone(&landings),
                unproven: Arc::new(Semaphore::new(options.max_unproven)),
                // Twice, for each may be followed by the next while it waits for its status to be read.
                proven: Arc::new(Semaphore::new(2 * options.max_transfers)),
                handshake_timeout: options.handshake_timeout,
                refused: Arc::clone(&refused),
            };
            tasks.spawn(listener::serve(listener, door, closing.clone(), tasks.clone()));
            advertised
        });
        let shm = shm.map(|ShmLanding { directory, boot_id }| {
            let LandingOptions { handshake_timeout, max_mappings, max_copies, .. } = options;
            let geometry = *kv.geometry();
            let importer =
                Arc::new(Importer::new(directory, geometry, handshake_timeout, max_mappings, max_copies));
            tasks.spawn(forget_idle_mappings(Arc::clone(&importer), closing.clone()));
            (boot_id, importer)
        });
        let close_on_drop = closing.clone().drop_guard();
        Self { kv, landings, advertised, shm, refused, closing, _close_on_drop: close_on_drop, tasks }
    }

    /// Transfers that are open.
    pub fn open_transfers(&self) -> usize {
        self.landings.len()
    }

    /// Data connections turned away since the start: garbage, wrong secrets, silence, one too many.
    pub fn refused_connections(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Mappings of peers' pools that are kept.
    pub fn kept_mappings(&self) -> usize {
        self.shm.as_ref().map_or(0, |(_, importer)| importer.kept_count())
    }

    /// Ends all transfers and waits until nothing writes into the pool.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl LandingEndpoint for HostLanding {
    fn open(&self, request: LandingRequest) -> Result<(Offer, LandingSession), OpenError> {
        let LandingRequest { transfer, secret, tokens, deadline } = request;
        if self.closing.is_cancelled() {
            return Err(OpenError::Closed);
        }
        if tokens.is_empty() {
            return Err(OpenError::Empty);
        }
        let core = Arc::new(LandingCore::new(transfer, secret.clone(), tokens, Arc::clone(&self.kv)));
        self.landings.insert(transfer, Arc::clone(&core))?;
        let landings = Arc::clone(&self.landings);
        self.tasks.spawn(watch(Arc::clone(&core), landings, deadline, self.closing.clone()));
        let (boot_id, importer) = self.shm.clone().unzip();
        let offer = Offer { transfer, secret, tokens, tcp: self.advertised.clone(), shm: boot_id };
        let settle = Settle::new(self.advertised.is_some(), importer, self.tasks.clone());
        Ok((offer, LandingSession::new(core, settle)))
    }
}

/// Ends a landing at its deadline or with its endpoint, and forgets it when it is over.
async fn watch(
    core: Arc<LandingCore>,
    landings: Arc<Registry<LandingCore>>,
    deadline: Instant,
    closing: CancellationToken,
) {
    tokio::select! {
        () = core.ended.cancelled() => {}
        () = sleep_until(deadline) => core.fail(Failure::Deadline),
        () = closing.cancelled() => core.fail(Failure::Closed),
    }
    landings.remove(core.transfer);
}

async fn forget_idle_mappings(importer: Arc<Importer>, closing: CancellationToken) {
    let mut sweep = tokio::time::interval(MAPPING_IDLE / 2);
    let sweeping = async {
        loop {
            let now = sweep.tick().await;
            if let Some(since) = now.checked_sub(MAPPING_IDLE) {
                importer.forget_unused(since);
            }
        }
    };
    closing.run_until_cancelled(sweeping).await;
}
