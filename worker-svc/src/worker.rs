//! What every call of this worker shares.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use armature_contracts::ids::{ReservationKey, WorkerRank};
use armature_svc_kit::channel::Channels;
use armature_svc_kit::drain::Drain;
use tokio_util::task::TaskTracker;

use crate::driver::Driver;
use crate::faults::FaultPoints;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::ports::Backend;
use crate::transfer::{LandingEndpoint, SourceEndpoint};

/// Time limits of a hand-off.
#[derive(Debug, Clone, Copy)]
pub struct HandoffLimits {
    /// Longest wait of a decode worker for a prefill worker's first answer.
    pub accept: Duration,
    /// Longest wait between two signs of progress of a transfer.
    pub progress: Duration,
    /// How long a prefill worker keeps a computed prompt for a decode worker that says nothing.
    pub hold: Duration,
}

/// What every worker's calls share, whatever computes its tokens.
#[derive(Debug)]
pub struct Served {
    /// The fixed facts.
    pub identity: Identity,
    /// What computes tokens.
    pub backend: Arc<dyn Backend>,
    /// The shutdown.
    pub drain: Drain,
    /// Every request runs as a task of this: none is detached.
    pub tasks: TaskTracker,
    /// Instruments.
    pub metrics: Metrics,
    /// What hand-offs need; none where the engine's KV cannot be moved.
    pub own: Option<Arc<Worker>>,
}

/// The shared parts of a worker with an engine of its own, whose KV moves.
#[derive(Debug)]
pub struct Worker {
    /// The fixed facts.
    pub identity: Identity,
    /// The engine.
    pub driver: Arc<Driver>,
    /// Where KV lands.
    pub landing: Box<dyn LandingEndpoint>,
    /// Where KV is sent from.
    pub source: Box<dyn SourceEndpoint>,
    /// Ways to other workers.
    pub channels: Channels,
    /// The shutdown.
    pub drain: Drain,
    /// Every request and transfer runs as a task of this: none is detached.
    pub tasks: TaskTracker,
    /// Instruments.
    pub metrics: Metrics,
    /// Places where a test may hold this process.
    pub faults: FaultPoints,
    /// Time limits of hand-offs.
    pub limits: HandoffLimits,
    /// Which prefill worker each reservation used.
    pub prefill_used: PrefillUsed,
}

/// Which prefill worker a reservation used, for the report that ends the leg of one that was not.
/// Bounded: the oldest are forgotten.
#[derive(Debug)]
pub struct PrefillUsed {
    most: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    used: HashMap<ReservationKey, WorkerRank>,
    order: VecDeque<ReservationKey>,
}

impl PrefillUsed {
    /// Remembers at most `most` reservations.
    pub fn new(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// Notes the prefill worker of a reservation.
    pub fn note(&self, key: ReservationKey, worker: WorkerRank) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.used.insert(key, worker).is_none() {
            known.order.push_back(key);
        }
        while known.order.len() > self.most {
            if let Some(oldest) = known.order.pop_front() {
                known.used.remove(&oldest);
            }
        }
    }

    /// The prefill worker of a reservation, if one was used.
    pub fn of(&self, key: ReservationKey) -> Option<WorkerRank> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).used.get(&key).copied()
    }
}
