//! Measures the KV-event state on a real redis-server: `steady` for CPU and the age of events, `warm-up` for the start of a router and memory.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_kv_events::fleet::NAMESPACE;
use armature_kv_events::log::{Log, identity};
use armature_kv_events::router::{RouterHalf, Seen};
use armature_kv_redis::{Redis as Client, RedisConfig};
use armature_test_backends::Redis;
use armature_worker::adapters::kv_publisher::KvPublisher;
use armature_worker::metrics::RedisMetrics;
use clap::{Parser, Subcommand};
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, interval, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// Measures the KV-event state on a real redis-server.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Redis' CPU and the age of events under a steady load.
    Steady {
        /// Workers.
        #[arg(long, default_value_t = 1000)]
        publishers: u64,
        /// Batches of each in a second.
        #[arg(long, default_value_t = 20)]
        rate: u64,
        /// Routers.
        #[arg(long, default_value_t = 3)]
        readers: u64,
        /// Changes in a batch: half stored, half removed.
        #[arg(long, default_value_t = 16)]
        changes: usize,
        /// Blocks of each worker.
        #[arg(long, default_value_t = 1000)]
        blocks: usize,
        /// Seconds that are measured.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
    /// Time until a new router knows every block, and what a block takes in Redis.
    WarmUp {
        /// Blocks of all workers together.
        #[arg(long, default_value_t = 1_000_000)]
        blocks: usize,
        /// Workers.
        #[arg(long, default_value_t = 100)]
        workers: usize,
    },
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let text = match Args::parse().what {
        What::Steady { publishers, rate, readers, changes, blocks, seconds } => {
            let load = Load { publishers, rate, readers, changes, blocks };
            steady(load, Duration::from_secs(seconds)).await
        }
        What::WarmUp { blocks, workers } => warm_up(blocks, workers).await,
    };
    writeln!(std::io::stdout(), "{text}")
}

#[derive(Clone, Copy)]
struct Load {
    publishers: u64,
    rate: u64,
    readers: u64,
    changes: usize,
    blocks: usize,
}

struct Worker {
    seen: Seen,
    metrics: RedisMetrics,
    _publisher: AbortOnDropHandle<()>,
}

fn client(redis: &Redis) -> Client {
    let config = RedisConfig { url: redis.url(), ..RedisConfig::default() };
    let options = config.validate().expect("the address is sound").expect("there is one");
    Client::new(options).expect("no TLS is needed")
}

fn worker(redis: &Redis, rng: &mut StdRng, blocks: usize) -> Worker {
    let instance = InstanceId(rng.random_range(1..=u64::MAX));
    let log = Log::new(WorkerRank::first(instance), true);
    log.change(rng, blocks, 0);
    let metrics = RedisMetrics::new(&mut Registry::default());
    let publisher = KvPublisher::new(Arc::clone(&log), client(redis), identity(), NAMESPACE, metrics.clone());
    let publisher = AbortOnDropHandle::new(tokio::spawn(publisher.run()));
    Worker { seen: Seen { rank: WorkerRank::first(instance), log }, metrics, _publisher: publisher }
}

async fn published(workers: &[Worker]) {
    while workers.iter().any(|worker| worker.metrics.connected.get() == 0) {
        sleep(Duration::from_millis(20)).await;
    }
}

fn knows(router: &RouterHalf, seen: &Seen) -> bool {
    router.mark(seen.rank).is_some_and(|mark| mark.batch == seen.log.last_state().batch)
}

async fn known(router: &RouterHalf, workers: &[Worker]) {
    for worker in workers {
        while !knows(router, &worker.seen) {
            sleep(Duration::from_millis(2)).await;
        }
    }
}

fn seen(workers: &[Worker]) -> Vec<Seen> {
    workers.iter().map(|worker| worker.seen.clone()).collect()
}

async fn steady(load: Load, length: Duration) -> String {
    let redis = Redis::start(&[]);
    let mut rng = StdRng::seed_from_u64(1);
    let workers: Vec<_> = (0..load.publishers).map(|_| worker(&redis, &mut rng, load.blocks)).collect();
    published(&workers).await;
    let mut routers = Vec::new();
    for id in 1..=load.readers {
        let mut router = RouterHalf::start(client(&redis), NAMESPACE, InstanceId(id), 8_000_000);
        router.members(&seen(&workers));
        known(&router, &workers).await;
        routers.push(router);
    }
    let period = Duration::from_secs(1) / load.rate as u32;
    let mut busy = Vec::new();
    for worker in &workers {
        let (log, mut rng) = (Arc::clone(&worker.seen.log), StdRng::seed_from_u64(rng.random()));
        busy.push(AbortOnDropHandle::new(tokio::spawn(async move {
            sleep(period.mul_f64(rng.random())).await;
            let mut ticks = interval(period);
            loop {
                ticks.tick().await;
                // What waited since the last time is due now.
                log.poll();
                log.change(&mut rng, load.changes / 2, load.changes / 2);
            }
        })));
    }
    sleep(Duration::from_secs(3)).await;
    let pid = redis.pid().expect("it runs");
    let written = || workers.iter().map(|worker| worker.metrics.batches.get()).sum::<u64>();
    let (cpu, start, before) = (cpu_seconds(pid), Instant::now(), written());
    let mut ages = ages(&routers, &workers, start + length).await;
    let wall = start.elapsed().as_secs_f64();
    let (cpu, batches) = (cpu_seconds(pid) - cpu, written() - before);
    ages.sort_unstable();
    let quantile = |share: f64| ages[((ages.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let asked: i64 = routers.iter().map(|router| router.metrics.asked_ranks()).sum();
    format!(
        "{} publishers, {:.0} batches/s in all, {} readers: Redis {:.0} % of a core; event age p50 {:.0} ms, p99 {:.0} ms ({} samples); {asked} ranks asked directly",
        load.publishers,
        batches as f64 / wall,
        load.readers,
        cpu / wall * 100.0,
        quantile(0.5),
        quantile(0.99),
        ages.len(),
    )
}

/// From the cut of a batch until a router has applied it, of every twentieth worker, looked at every 5 ms.
async fn ages(routers: &[RouterHalf], workers: &[Worker], end: Instant) -> Vec<Duration> {
    let watched: Vec<&Seen> = workers.iter().step_by(20).map(|worker| &worker.seen).collect();
    let mut marks = vec![vec![0; watched.len()]; routers.len()];
    let mut ages = Vec::new();
    let mut looks = interval(Duration::from_millis(5));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut first = true;
    while Instant::now() < end {
        looks.tick().await;
        for (router, marks) in routers.iter().zip(&mut marks) {
            for (seen, mark) in watched.iter().zip(marks) {
                let Some(now) = router.mark(seen.rank) else { continue };
                let fresh = *mark + 1..=now.batch;
                *mark = now.batch;
                if !first {
                    ages.extend(fresh.filter_map(|batch| seen.log.cut_at(batch)).map(|at| at.elapsed()));
                }
            }
        }
        first = false;
    }
    ages
}

async fn warm_up(blocks: usize, workers: usize) -> String {
    let redis = Redis::start(&[]);
    let mut rng = StdRng::seed_from_u64(1);
    let empty = used_memory(&redis);
    let workers: Vec<_> = (0..workers).map(|_| worker(&redis, &mut rng, blocks / workers)).collect();
    published(&workers).await;
    let held = used_memory(&redis) - empty;
    let mut times = Vec::new();
    for id in 1..=3 {
        let start = Instant::now();
        let mut router = RouterHalf::start(client(&redis), NAMESPACE, InstanceId(id), blocks + blocks / 4);
        router.members(&seen(&workers));
        known(&router, &workers).await;
        times.push(start.elapsed().as_secs_f64());
        assert_eq!(router.metrics.snapshots.get(), workers.len() as u64, "all came from Redis");
        sleep_until(Instant::now() + Duration::from_millis(100)).await;
    }
    times.sort_by(f64::total_cmp);
    format!(
        "{blocks} blocks of {} workers: a router knows them after {:.2} s (median of {:.2?}); Redis {:.1} bytes a block",
        workers.len(),
        times[1],
        times,
        held as f64 / blocks as f64,
    )
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime and stime, in ticks of a hundredth of a second on Linux.
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

fn used_memory(redis: &Redis) -> u64 {
    let program =
        std::env::var_os("ARMATURE_BACKENDS").map_or_else(Default::default, std::path::PathBuf::from);
    let output = std::process::Command::new(program.join("redis-cli"))
        .args(["-p", &redis.port().to_string(), "info", "memory"])
        .output()
        .expect("redis-cli runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let used = text.lines().find_map(|line| line.trim().strip_prefix("used_memory:")?.parse().ok());
    used.expect("Redis says its memory")
}
