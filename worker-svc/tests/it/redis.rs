//! A worker and a real Redis: what is written there, and that no request waits for it.

use armature_contracts::kv::v1 as kv;
use armature_kv_redis::keys::RankKeys;
use armature_kv_redis::{Command, Connector as _, RedisConfig, Reply, Store as _};
use armature_test_backends::Redis;
use armature_worker::identity::Role;
use prost::Message as _;

use crate::harness::{Fleet, Node, prompt, request, wait_until};

/// Batches that the event log keeps.
const RING: f64 = 256.0;

fn config(redis: &Redis) -> RedisConfig {
    RedisConfig { url: redis.url(), ..RedisConfig::default() }
}

async fn ask(redis: &Redis, command: Command) -> Reply {
    let options = config(redis).validate().unwrap().unwrap();
    let mut store = armature_kv_redis::Redis::new(options).unwrap().connect().await.unwrap();
    store.run(vec![command]).await.unwrap().remove(0)
}

async fn reaches_redis(node: &Node) {
    wait_until("events reach Redis", async || {
        node.metric("armature_worker_redis_connected").await == 1.0
            && node.metric("armature_worker_redis_behind_batches").await == 0.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_tells_redis_its_blocks() {
    let redis = Redis::start(&[]);
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |worker| worker.kv_events.redis = config(&redis)).await;
    reaches_redis(&node).await;
    node.generate(request(&node, &prompt(64, 6), 4, 1)).await.unwrap();
    let keys = RankKeys::new("default", node.rank());
    let mut last = (0, kv::KvEventBatch::default());
    wait_until("four full blocks of the prompt are there", async || {
        let newest = Command::Newest { key: keys.batches.clone(), count: 1 };
        let Reply::Entries(mut entries) = ask(&redis, newest).await else { panic!("a stream has entries") };
        if let Some(entry) = entries.pop() {
            last = (entry.id, kv::KvEventBatch::decode(entry.payload).unwrap());
        }
        last.1.count == 4
    })
    .await;
    assert_eq!(last.1.batch, last.0);
    let Reply::Entries(pointers) =
        ask(&redis, Command::Newest { key: keys.snapshots.clone(), count: 2 }).await
    else {
        panic!("a pointer is an entry")
    };
    let pointer = kv::KvSnapshotPointer::decode(pointers[0].payload.clone()).unwrap();
    assert_eq!((pointer.batch, pointer.chunks, pointer.count), (pointers[0].id, 1, 0));
    let chunk = ask(&redis, Command::Chunk { key: keys.chunks(pointer.batch), chunk: 0 }).await;
    let Reply::Chunk(Some(chunk)) = chunk else { panic!("{chunk:?}") };
    assert_eq!(kv::KvSnapshotChunk::decode(chunk).unwrap().batch, pointer.batch);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_redis_frozen_requests_are_served_and_nothing_piles_up() {
    let redis = Redis::start(&[]);
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |worker| worker.kv_events.redis = config(&redis)).await;
    reaches_redis(&node).await;
    redis.freeze();
    // Each changes the cache, so that there is something to tell; the pool is smaller than all of them together.
    let mut salt = 0;
    wait_until("the freeze is noticed under load", async || {
        salt += 1;
        let output = node.generate(request(&node, &prompt(200, salt), 4, 1)).await.unwrap();
        assert_eq!(output.tokens[0].len(), 4);
        salt >= 40 && node.metric("armature_worker_redis_connected").await == 0.0
    })
    .await;
    let behind = node.metric("armature_worker_redis_behind_batches").await;
    assert!(behind <= RING, "{behind} batches behind");
    redis.thaw();
    reaches_redis(&node).await;
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicting_redis_is_refused_with_what_to_set_and_the_worker_serves() {
    let redis = Redis::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut fleet = Fleet::sim();
    let node = fleet.start(Role::Aggregated, |worker| worker.kv_events.redis = config(&redis)).await;
    wait_until("it is refused", async || {
        node.metrics().await.contains("armature_worker_redis_failures_total{reason=\"unfit\"}")
    })
    .await;
    assert_eq!(node.metric("armature_worker_redis_connected").await, 0.0);
    let output = node.generate(request(&node, &prompt(64, 1), 4, 1)).await.unwrap();
    assert_eq!(output.tokens[0].len(), 4);
}
