//! The state behind its lock, with the clock and the entropy that the domain takes as arguments.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use armature_contracts::ids::{InstanceId, WorkerRank};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::adapters::record::writer::{Recorded, Recorder};
use crate::config::{Config, IndexKind, Valid};
use crate::domain::explain::KeptDecisions;
use crate::domain::index::approximate::Approximate;
use crate::domain::index::map::MapIndex;
use crate::domain::index::predicted::Predicted;
use crate::domain::index::segmented::SegmentedIndex;
use crate::domain::index::wire::CheckedIndex;
use crate::domain::load::Report;
use crate::domain::reservations::{Reservations, Settled};
use crate::domain::router::{Request, RouteError, Routed, Router};
use crate::domain::units::Time;
use crate::metrics::Metrics;
use crate::ports::PrefixIndex;

/// What the parts of a running router share.
pub struct Shared {
    /// Instruments.
    pub metrics: Metrics,
    state: Mutex<State>,
    start: Instant,
    /// This router's incarnation; another one after discovery has fenced it.
    instance: AtomicU64,
    complete: AtomicBool,
    progress: Notify,
    recorder: Option<Recorder>,
}

struct State {
    router: Router,
    seeds: StdRng,
}

impl Shared {
    /// An empty state; `recorder` gets every decision. `entropy` seeds the index's hasher and the tie-breaks.
    pub fn new(
        config: &Config,
        valid: Valid,
        instance: InstanceId,
        entropy: u64,
        metrics: Metrics,
        recorder: Option<Recorder>,
    ) -> Arc<Self> {
        let mut seeds = StdRng::seed_from_u64(entropy);
        let index: Box<dyn PrefixIndex> = match config.index.kind {
            IndexKind::Segmented => {
                let keys = std::array::from_fn(|_| seeds.next_u64());
                Box::new(SegmentedIndex::new(config.index.max_bytes, keys))
            }
            IndexKind::Map => Box::new(MapIndex::new(config.index.max_entries, seeds.next_u64())),
        };
        let lifetime = std::time::Duration::from_millis(config.index.predicted_ms);
        let predicted = Predicted::new(config.index.predicted_entries, lifetime, seeds.next_u64());
        let reservations = Reservations::new(valid.reservations);
        let kept = KeptDecisions::new(config.explain.max_bytes);
        let lifetime = std::time::Duration::from_millis(config.index.approximate_ttl_ms);
        let approximate = Approximate::new(config.index.approximate_entries, lifetime, seeds.next_u64());
        let router = Router::new(valid.settings, CheckedIndex::new(index), predicted, reservations, kept)
            .approximating(approximate)
            .placed_by(config.topology.keys.clone().into());
        Arc::new(Self {
            metrics,
            state: Mutex::new(State { router, seeds }),
            start: Instant::now(),
            instance: AtomicU64::new(instance.0),
            complete: AtomicBool::new(false),
            progress: Notify::new(),
            recorder,
        })
    }

    /// This router's incarnation.
    pub fn instance(&self) -> InstanceId {
        InstanceId(self.instance.load(Ordering::Relaxed))
    }

    /// Goes on as another incarnation.
    pub fn renamed(&self, instance: InstanceId) {
        self.instance.store(instance.0, Ordering::Relaxed);
    }

    /// Takes a report, and wakes who waits for the first ones.
    pub fn report(&self, instance: InstanceId, ranks: Vec<(WorkerRank, Report)>, settled: &[Settled]) {
        let now = self.now();
        self.with(|router| router.report(instance, ranks, settled, now));
        self.progress.notify_waiters();
    }

    /// Says whether every worker in discovery's view is known with its card.
    pub fn membership_complete(&self, complete: bool) {
        self.complete.store(complete, Ordering::Release);
        self.progress.notify_waiters();
    }

    /// Waits until every worker of a complete view has reported.
    pub async fn all_reported(&self) {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            if self.complete.load(Ordering::Acquire) && self.with(|router| router.all_reported()) {
                return;
            }
            progress.await;
        }
    }

    /// The present, in the domain's time.
    pub fn now(&self) -> Time {
        Time(self.start.elapsed())
    }

    /// Reads or changes the state.
    pub fn with<R>(&self, step: impl FnOnce(&mut Router) -> R) -> R {
        step(&mut self.lock().router)
    }

    /// Decides with a fresh seed.
    pub fn route(&self, request: &Request) -> Result<Arc<Routed>, RouteError> {
        let now = self.now();
        let mut state = self.lock();
        let seed = state.seeds.next_u64();
        let before = state.router.decisions();
        let routed = state.router.route(request, seed, now)?;
        if let Some(recorder) = &self.recorder
            && state.router.decisions() > before
            && let Some(inputs) = state.router.inputs(routed.number).cloned()
        {
            drop(state);
            recorder.record(Recorded { number: routed.number, inputs, outcome: routed.outcome() });
        }
        Ok(routed)
    }

    /// Lets time pass and shows the gauges.
    pub fn tick(&self) {
        let now = self.now();
        let (unnamed, totals) = self.with(|router| {
            router.tidy();
            (router.expire(now), router.totals())
        });
        self.metrics.unnamed.inc_by(unnamed as u64);
        self.metrics.show(totals);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the domain is a bug; the state is still the best there is, and reports and snapshots correct it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
