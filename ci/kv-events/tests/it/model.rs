//! The model test: any weather, and every router has every worker's set afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use armature_kv_events::fleet::Fleet;
use armature_kv_events::sim::{SimRedis, Weather};
use tokio::time::{Instant, sleep};

use crate::script::disturb;

/// Seeds that have failed once.
const KNOWN: [u64; 0] = [];
/// How many others are tried; `ARMATURE_SEEDS` says how many instead.
const SEEDS: u64 = 30;

fn seeds() -> impl Iterator<Item = u64> {
    let more = std::env::var("ARMATURE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    KNOWN.into_iter().chain(0..more)
}

fn simulated<F: Future<Output = ()>>(run: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async { run().await });
}

#[test]
fn after_any_weather_every_router_has_every_workers_set() {
    for seed in seeds() {
        // The seed of a failure is in the captured output.
        eprintln!("seed {seed}");
        simulated(|| async {
            let mut redis = SimRedis::new(seed);
            let mut fleet = Fleet::start(redis.clone(), 4, 2, seed);
            disturb(&mut fleet, &mut redis, 120, Duration::from_secs(180)).await;
        });
    }
}

/// Snapshots follow each other and old ones go, while routers start again and again: none of them misses anything.
#[test]
fn trimming_never_loses_what_a_reader_needs() {
    for seed in 0..2 {
        simulated(|| async {
            let redis = SimRedis::new(seed);
            redis.weather(Weather { delay_ms: 40, ..Weather::default() });
            let mut fleet = Fleet::start(redis.clone(), 3, 2, seed);
            let mut lost = BTreeMap::new();
            fleet.settles(Duration::from_secs(10)).await;
            fleet.reads_redis_only(Duration::from_secs(60)).await;
            // What started before its workers had written anything has asked them.
            (0..2).for_each(|at| fleet.restart_router(at));
            for step in 0..2_500 {
                fleet.change();
                sleep(Duration::from_millis(60)).await;
                if step % 50 == 49 {
                    let at = (step / 50) % 2;
                    holes(&fleet, at, &mut lost);
                    fleet.restart_router(at);
                }
            }
            (0..2).for_each(|at| holes(&fleet, at, &mut lost));
            assert!(lost.values().all(|times| *times == 0), "dropped under a reader: {lost:?}");
            let snapshots: Vec<u64> =
                fleet.workers.iter().map(|worker| worker.metrics.snapshots.get()).collect();
            assert!(snapshots.iter().all(|written| *written >= 5), "too few to tell: {snapshots:?}");
            fleet.settles(Duration::from_secs(10)).await;
        });
    }
}

/// Adds how often a router had to ask a worker for what it did not find.
fn holes(fleet: &Fleet<SimRedis>, at: usize, lost: &mut BTreeMap<&'static str, u64>) {
    for reason in ["hole", "no_snapshot", "doubt", "unreadable", "behind"] {
        *lost.entry(reason).or_default() += fleet.routers[at].remedies(reason);
    }
}

/// What a rank takes in Redis is bounded by its set, however many batches there were.
#[test]
fn what_redis_holds_follows_the_set_and_not_the_history() {
    simulated(|| async {
        let redis = SimRedis::new(1);
        let mut fleet = Fleet::start(redis.clone(), 1, 1, 1);
        let mut most = 0;
        for _ in 0..6_000 {
            let blocks = fleet.workers[0].seen.log.last_state().count;
            let removed = if blocks > 2_000 { 20 } else { 0 };
            fleet.workers[0].seen.log.change(&mut fleet.rng, 10, removed);
            sleep(Duration::from_millis(60)).await;
            most = most.max(redis.bytes());
        }
        // Two snapshots of 2,000 blocks, and two tails of at least 64 KiB each; the tails are weighed generously.
        assert!(most < 2 * 2_100 * 8 + 2 * 80 * 1024 + 10_000, "{most} bytes");
    });
}

/// A dead worker's keys go by themselves, a live idle one's stay.
#[test]
fn a_live_workers_keys_stay_and_a_dead_ones_expire() {
    simulated(|| async {
        let redis = SimRedis::new(1);
        let mut fleet = Fleet::start(redis.clone(), 2, 1, 1);
        fleet.change();
        fleet.settles(Duration::from_secs(10)).await;
        let (alive, dead) = (fleet.workers[0].seen.rank, fleet.workers[1].seen.rank);
        fleet.restart_worker(1);
        sleep(Duration::from_secs(20 * 60)).await;
        let held = |rank: armature_contracts::ids::WorkerRank| redis.held(&rank.instance.to_string());
        assert_eq!(held(dead), (0, 0));
        let (entries, chunks) = held(alive);
        assert!(entries > 1 && chunks == 1, "{entries} entries, {chunks} chunks");
        assert_eq!(fleet.routers[0].metrics.asked_ranks(), 0);
    });
}

/// With Redis frozen the ring is what waits, and it is bounded; the workers bring the events meanwhile.
#[test]
fn while_redis_is_frozen_workers_bring_their_events() {
    simulated(|| async {
        let redis = SimRedis::new(1);
        let mut fleet = Fleet::start(redis.clone(), 4, 2, 1);
        fleet.change();
        fleet.settles(Duration::from_secs(10)).await;
        fleet.reads_redis_only(Duration::from_secs(60)).await;
        redis.freeze();
        let frozen = Instant::now();
        for _ in 0..500 {
            fleet.change();
            sleep(Duration::from_millis(60)).await;
        }
        assert!(frozen.elapsed() > Duration::from_secs(25));
        fleet.settles(Duration::from_secs(5)).await;
        assert!(fleet.routers.iter().all(|router| router.remedies("away") == 4));
        redis.thaw();
        fleet.reads_redis_only(Duration::from_secs(60)).await;
        fleet.change();
        fleet.settles(Duration::from_secs(5)).await;
    });
}
