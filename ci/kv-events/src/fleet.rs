//! Workers and routers around one Redis, and what a test does to them.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_kv_redis::Connector;
use armature_worker::adapters::kv_publisher::KvPublisher;
use armature_worker::metrics::RedisMetrics;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::log::{Log, identity};
use crate::router::{RouterHalf, Seen};

/// Deployment of every fleet.
pub const NAMESPACE: &str = "default";

/// Most blocks of a router.
const MAX_ENTRIES: usize = 1_000_000;

/// A worker: its log, and its publisher.
pub struct Publishing {
    /// As routers see it.
    pub seen: Seen,
    /// Instruments of the publisher.
    pub metrics: RedisMetrics,
    _tasks: [AbortOnDropHandle<()>; 2],
}

/// Workers and routers.
pub struct Fleet<C> {
    /// What publishers connect to.
    pub writing: C,
    /// What readers connect to: the same, perhaps as another user.
    pub reading: C,
    /// Publishers.
    pub workers: Vec<Publishing>,
    /// Readers.
    pub routers: Vec<RouterHalf>,
    /// What is not decided is drawn from here.
    pub rng: StdRng,
}

impl<C: Connector + Clone> Fleet<C>
where
    C::Store: Clone,
{
    /// Starts everything.
    pub fn start(redis: C, workers: usize, routers: usize, seed: u64) -> Self {
        Self::start_apart(redis.clone(), redis, workers, routers, seed)
    }

    /// Starts everything, publishers and readers with connections of their own kind.
    pub fn start_apart(writing: C, reading: C, workers: usize, routers: usize, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let mut fleet = Self { writing, reading, workers: Vec::new(), routers: Vec::new(), rng };
        for _ in 0..workers {
            let worker = fleet.worker();
            fleet.workers.push(worker);
        }
        for _ in 0..routers {
            let router = fleet.router();
            fleet.routers.push(router);
        }
        fleet
    }

    fn worker(&mut self) -> Publishing {
        let instance = InstanceId(self.rng.random_range(1..=u64::MAX));
        let log = Log::new(WorkerRank::first(instance), true);
        let metrics = RedisMetrics::new(&mut Registry::default());
        let publisher =
            KvPublisher::new(Arc::clone(&log), self.writing.clone(), identity(), NAMESPACE, metrics.clone());
        let tasks = [
            AbortOnDropHandle::new(tokio::spawn(publisher.run())),
            AbortOnDropHandle::new(tokio::spawn(Arc::clone(&log).run())),
        ];
        Publishing { seen: Seen { rank: WorkerRank::first(instance), log }, metrics, _tasks: tasks }
    }

    fn router(&mut self) -> RouterHalf {
        let instance = InstanceId(self.rng.random_range(1..=u64::MAX));
        let mut router = RouterHalf::start(self.reading.clone(), NAMESPACE, instance, MAX_ENTRIES);
        router.members(&self.seen());
        router
    }

    fn seen(&self) -> Vec<Seen> {
        self.workers.iter().map(|worker| worker.seen.clone()).collect()
    }

    /// Kills a worker and starts another in its place.
    pub fn restart_worker(&mut self, at: usize) {
        self.workers[at] = self.worker();
        let seen = self.seen();
        self.routers.iter_mut().for_each(|router| router.members(&seen));
    }

    /// Kills a router and starts another in its place.
    pub fn restart_router(&mut self, at: usize) {
        self.routers[at] = self.router();
    }

    /// Every worker stores and removes some blocks.
    pub fn change(&mut self) {
        for worker in &self.workers {
            let (stored, removed) = (self.rng.random_range(0..20), self.rng.random_range(0..16));
            worker.seen.log.change(&mut self.rng, stored, removed);
        }
    }

    /// What must hold at any time: what a router knows of a worker is what that worker once was.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        for (at, router) in self.routers.iter().enumerate() {
            for Publishing { seen, .. } in &self.workers {
                let Some(mark) = router.mark(seen.rank) else { continue };
                let was = seen.log.state_after(mark.batch).expect("a router is not ahead of the worker");
                assert_eq!(
                    (mark.count, mark.digest),
                    (was.count, was.digest),
                    "router {at}, batch {}",
                    mark.batch
                );
            }
        }
    }

    /// Whether every router has every worker's very set, by Redis or by asking.
    pub fn is_even(&self) -> bool {
        self.routers.iter().all(|router| {
            self.workers.iter().all(|Publishing { seen, .. }| {
                let (state, held) = (seen.log.last_state(), router.held(seen.rank));
                let known = router.mark(seen.rank).is_some_and(|mark| mark.batch == state.batch);
                known && (held.count, held.digest) == (state.count, state.digest)
            })
        })
    }

    /// Waits until it is even, and that a removed block has not come back.
    ///
    /// # Panics
    /// When it is not even within `limit`.
    pub async fn settles(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.workers.iter().for_each(|worker| worker.seen.log.flush());
        while !self.is_even() {
            assert!(Instant::now() < deadline, "not even after {limit:?}: {}", self.describe());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for router in &self.routers {
            for Publishing { seen, .. } in &self.workers {
                for hash in seen.log.removed() {
                    assert!(!router.has(seen.rank, hash), "a removed block is back");
                }
            }
        }
    }

    /// Waits until no router asks a worker itself.
    ///
    /// # Panics
    /// When one still does after `limit`.
    pub async fn reads_redis_only(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.routers.iter().any(|router| router.metrics.asked_ranks() > 0) {
            assert!(
                Instant::now() < deadline,
                "workers are still asked after {limit:?}: {}",
                self.describe()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Who is where.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for Publishing { seen, .. } in &self.workers {
            let state = seen.log.last_state();
            let marks: Vec<_> = self
                .routers
                .iter()
                .map(|router| (router.mark(seen.rank).map(|mark| mark.batch), router.metrics.asked_ranks()))
                .collect();
            text += &format!(
                "\n{}: batch {}, {} blocks; routers at {marks:?}",
                seen.rank, state.batch, state.count
            );
        }
        text
    }
}
