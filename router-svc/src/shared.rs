//! The state behind its lock, with the clock and the entropy that the domain takes as arguments.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use armature_contracts::ids::InstanceId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::config::{Config, Valid};
use crate::domain::explain::KeptDecisions;
use crate::domain::index::map::MapIndex;
use crate::domain::index::predicted::Predicted;
use crate::domain::reservations::Reservations;
use crate::domain::router::{Request, RouteError, Routed, Router};
use crate::domain::units::Time;
use crate::metrics::Metrics;

/// What the parts of a running router share.
pub struct Shared {
    /// This router's incarnation.
    pub instance: InstanceId,
    /// Instruments.
    pub metrics: Metrics,
    state: Mutex<State>,
    start: Instant,
}

struct State {
    router: Router<MapIndex>,
    seeds: StdRng,
}

impl Shared {
    /// An empty state. `entropy` seeds the index's hasher and the tie-breaks.
    pub fn new(
        config: &Config,
        valid: Valid,
        instance: InstanceId,
        entropy: u64,
        metrics: Metrics,
    ) -> Arc<Self> {
        let mut seeds = StdRng::seed_from_u64(entropy);
        let index = MapIndex::new(config.index.max_entries, seeds.next_u64());
        let lifetime = std::time::Duration::from_millis(config.index.predicted_ms);
        let predicted = Predicted::new(config.index.predicted_entries, lifetime, seeds.next_u64());
        let reservations = Reservations::new(valid.reservations);
        let kept = KeptDecisions::new(config.explain.max_bytes);
        let router = Router::new(valid.settings, index, predicted, reservations, kept);
        Arc::new(Self {
            instance,
            metrics,
            state: Mutex::new(State { router, seeds }),
            start: Instant::now(),
        })
    }

    /// The present, in the domain's time.
    pub fn now(&self) -> Time {
        Time(self.start.elapsed())
    }

    /// Reads or changes the state.
    pub fn with<R>(&self, step: impl FnOnce(&mut Router<MapIndex>) -> R) -> R {
        step(&mut self.lock().router)
    }

    /// Decides with a fresh seed.
    pub fn route(&self, request: &Request) -> Result<Arc<Routed>, RouteError> {
        let now = self.now();
        let mut state = self.lock();
        let seed = state.seeds.next_u64();
        state.router.route(request, seed, now)
    }

    /// Lets time pass and shows the gauges.
    pub fn tick(&self) {
        let now = self.now();
        let (unnamed, totals) = self.with(|router| (router.expire(now), router.totals()));
        self.metrics.unnamed.inc_by(unnamed as u64);
        self.metrics.show(totals);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the domain is a bug; the state is still the best there is, and reports and snapshots correct it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
