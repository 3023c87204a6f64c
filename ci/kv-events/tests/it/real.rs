//! The same over a real server, in real time, and what only a real one shows.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use armature_kv_events::fleet::Fleet;
use armature_kv_redis::{Connector as _, Redis as RedisClient, RedisConfig, Store as _};
use armature_test_backends::Redis;

use crate::script::{Server, disturb};

const PATIENCE: Duration = Duration::from_secs(60);

pub fn client(url: String) -> RedisClient {
    let options = RedisConfig { url, ..RedisConfig::default() }.validate().unwrap().unwrap();
    RedisClient::new(options).unwrap()
}

/// redis-cli from where the servers come from.
pub fn cli(args: &[&str]) -> String {
    let program =
        std::env::var_os("ARMATURE_BACKENDS").map_or_else(PathBuf::new, PathBuf::from).join("redis-cli");
    let output = Command::new(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "redis-cli {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

struct Real<'a>(&'a mut Redis);

impl Server for Real<'_> {
    fn kill(&mut self) {
        self.0.kill();
    }
    fn revive(&mut self) {
        self.0.revive();
    }
    fn freeze(&mut self) {
        self.0.freeze();
    }
    fn thaw(&mut self) {
        self.0.thaw();
    }
    fn full(&mut self, full: bool) {
        if self.0.pid().is_some() {
            let limit = if full { "1mb" } else { "0" };
            cli(&["-p", &self.0.port().to_string(), "config", "set", "maxmemory", limit]);
        }
    }
}

/// As a publisher asks that has nothing to tidy up.
#[tokio::test]
async fn no_commands_have_no_answers() {
    let redis = Redis::start(&[]);
    let mut store = client(redis.url()).connect().await.unwrap();
    assert_eq!(store.run(Vec::new()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_is_disturbed_and_nothing_is_lost() {
    for seed in 0..3 {
        let mut redis = Redis::start(&[]);
        let mut fleet = Fleet::start(client(redis.url()), 4, 2, seed);
        disturb(&mut fleet, &mut Real(&mut redis), 40, PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_server_is_filled_again() {
    let mut redis = Redis::start(&[]);
    let mut fleet = Fleet::start(client(redis.url()), 4, 2, 7);
    fleet.change();
    fleet.settles(PATIENCE).await;
    redis.restart();
    fleet.change();
    fleet.settles(PATIENCE).await;
    fleet.reads_redis_only(PATIENCE).await;
    // A router that starts now begins with what Redis has; on a busy machine it may have asked workers meanwhile.
    fleet.restart_router(0);
    fleet.settles(PATIENCE).await;
    fleet.reads_redis_only(PATIENCE).await;
    assert!(fleet.routers[0].metrics.snapshots.get() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_and_goes_on_when_it_has_room() {
    // One byte: whatever it takes by itself, nothing fits.
    let redis = Redis::start(&["--maxmemory", "1"]);
    let mut fleet = Fleet::start(client(redis.url()), 2, 1, 3);
    fleet.change();
    // The workers bring what Redis has no room for.
    fleet.settles(PATIENCE).await;
    let before = fleet.workers.iter().map(|worker| worker.metrics.batches.get()).sum::<u64>();
    assert_eq!(before, 0);
    cli(&["-p", &redis.port().to_string(), "config", "set", "maxmemory", "0"]);
    fleet.reads_redis_only(PATIENCE).await;
    fleet.change();
    fleet.settles(PATIENCE).await;
}
