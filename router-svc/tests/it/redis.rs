//! A router and a real Redis: it reads there, asks workers when in doubt, and no request waits for it.

use std::time::Duration;

use armature_contracts::discovery::v1::Role;
use armature_contracts::ids::WorkerRank;
use armature_contracts::kv::v1::{
    KvEvent, KvEventBatch, KvSnapshotChunk, KvSnapshotPointer, KvStored, TierBlocks,
};
use armature_contracts::kv::v1::{Tier, kv_event};
use armature_contracts::kv_hash::{HASH_SCHEME, set_digest};
use armature_kv_redis::keys::{Notice, RankKeys, channel};
use armature_kv_redis::{Command, Connector as _, RedisConfig, RedisStore, Store as _};
use armature_test_backends::Redis;
use prost::Message as _;

use crate::fake_worker::{BLOCK_SIZE, FakeWorker};
use crate::rig::{Rig, RouterUnderTest, chain, request};

fn config(redis: &Redis) -> RedisConfig {
    RedisConfig { url: redis.url(), ..RedisConfig::default() }
}

/// Writes what a publisher writes.
struct Writer {
    store: RedisStore,
    keys: RankKeys,
    rank: WorkerRank,
    blocks: Vec<u64>,
    batch: u64,
}

impl Writer {
    async fn new(redis: &Redis, rank: WorkerRank) -> Self {
        let options = config(redis).validate().unwrap().unwrap();
        let store = armature_kv_redis::Redis::new(options).unwrap().connect().await.unwrap();
        Self { store, keys: RankKeys::new("default", rank), rank, blocks: Vec::new(), batch: 0 }
    }

    fn digest(&self) -> u64 {
        set_digest(self.blocks.iter().map(|hash| (*hash, Tier::Device as u8)))
    }

    async fn snapshot(&mut self, blocks: &[u64]) {
        (self.blocks, self.batch) = (blocks.to_vec(), self.batch + 1);
        let list = TierBlocks { tier: Tier::Device.into(), sequence_hashes: self.blocks.clone() };
        let chunk = KvSnapshotChunk {
            worker: Some(self.rank.into()),
            batch: self.batch,
            chunk: 0,
            chunks: 1,
            blocks: vec![list],
            count: blocks.len() as u64,
            digest: self.digest(),
            hash_scheme: HASH_SCHEME.into(),
            block_size: BLOCK_SIZE,
        };
        let pointer = KvSnapshotPointer {
            worker: chunk.worker,
            batch: chunk.batch,
            chunks: 1,
            count: chunk.count,
            digest: chunk.digest,
            hash_scheme: HASH_SCHEME.into(),
            block_size: BLOCK_SIZE,
        };
        let key = self.keys.chunks(self.batch);
        let put = Command::PutChunk { key, chunk: 0, payload: chunk.encode_to_vec().into() };
        let point = self.append(self.keys.snapshots.clone(), pointer.encode_to_vec());
        self.store.run(vec![put, point]).await.unwrap();
    }

    fn append(&self, key: String, payload: Vec<u8>) -> Command {
        Command::Append { key, id: self.batch, payload: payload.into(), at_ms: 0, keep: None }
    }

    /// Stores blocks; `change` may spoil the batch.
    async fn store(&mut self, blocks: &[u64], change: impl FnOnce(&mut KvEventBatch)) {
        self.blocks.extend(blocks);
        self.batch += 1;
        let stored = KvStored { tier: Tier::Device.into(), parent: None, sequence_hashes: blocks.to_vec() };
        let mut batch = KvEventBatch {
            worker: Some(self.rank.into()),
            batch: self.batch,
            events: vec![KvEvent { event: Some(kv_event::Event::Stored(stored)) }],
            count: self.blocks.len() as u64,
            digest: self.digest(),
            hash_scheme: HASH_SCHEME.into(),
            block_size: BLOCK_SIZE,
        };
        change(&mut batch);
        let append = self.append(self.keys.batches.clone(), batch.encode_to_vec());
        let notify = Command::Notify { channel: channel("default"), notice: Notice(self.rank).to_string() };
        self.store.run(vec![append, notify]).await.unwrap();
    }
}

async fn sees(router: &mut RouterUnderTest, worker: &FakeWorker, blocks: u64) {
    let seen = router.sees(worker.rank, |view| view.index_known && view.indexed_blocks == blocks);
    let seen = tokio::time::timeout(Duration::from_secs(20), seen);
    assert!(seen.await.is_ok(), "the router does not see {blocks} blocks");
}

#[tokio::test]
async fn a_router_starts_from_the_snapshot_and_follows_the_stream() {
    let redis = Redis::start(&[]);
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut writer = Writer::new(&redis, worker.rank).await;
    writer.snapshot(&chain(7, 4)).await;
    writer.store(&chain(7, 6)[4..], |_| {}).await;
    let mut router = rig.router_with(|config| config.kv_events.redis = self::config(&redis)).await;
    sees(&mut router, &worker, 6).await;
    writer.store(&chain(7, 9)[6..], |_| {}).await;
    sees(&mut router, &worker, 9).await;
    assert_eq!(router.route(request(1, 200, chain(7, 9))).await.unwrap().matched_blocks, 9);
    assert_eq!(worker.subscriptions(), Vec::<u64>::new(), "the worker itself is not asked");
}

#[tokio::test]
async fn a_hole_and_a_wrong_digest_in_redis_are_healed_by_the_worker() {
    let redis = Redis::start(&[]);
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut writer = Writer::new(&redis, worker.rank).await;
    writer.snapshot(&chain(7, 4)).await;
    let mut router = rig.router_with(|config| config.kv_events.redis = self::config(&redis)).await;
    sees(&mut router, &worker, 4).await;
    // The worker's story goes on, and Redis misses a part of it.
    worker.store(&chain(7, 4));
    worker.store(&chain(7, 11));
    writer.batch += 2;
    writer.store(&chain(7, 6)[4..], |_| {}).await;
    sees(&mut router, &worker, 11).await;
    assert_eq!(worker.subscriptions(), vec![2], "from where the router was");

    let other = rig.worker(FakeWorker::new(2), Role::Aggregated).await;
    other.store(&chain(8, 4));
    other.store(&chain(8, 5));
    let mut writer = Writer::new(&redis, other.rank).await;
    writer.snapshot(&chain(8, 4)).await;
    writer.store(&chain(8, 5)[4..], |batch| batch.digest ^= 1).await;
    sees(&mut router, &other, 5).await;
    assert_eq!((other.subscriptions(), other.snapshots()), (vec![0], 1), "UNKNOWN until a snapshot");
}

#[tokio::test]
async fn a_worker_ahead_of_redis_is_asked() {
    let redis = Redis::start(&[]);
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    Writer::new(&redis, worker.rank).await.snapshot(&chain(7, 4)).await;
    let mut router = rig.router_with(|config| config.kv_events.redis = self::config(&redis)).await;
    sees(&mut router, &worker, 4).await;
    for blocks in [5, 9] {
        worker.store(&chain(7, blocks));
    }
    worker.load(|load| load.kv_batch = 2);
    sees(&mut router, &worker, 9).await;
    assert_eq!(worker.subscriptions(), vec![2]);
}

#[tokio::test]
async fn with_redis_frozen_requests_are_routed_and_workers_are_asked() {
    let redis = Redis::start(&[]);
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut writer = Writer::new(&redis, worker.rank).await;
    writer.snapshot(&chain(7, 4)).await;
    let mut router = rig
        .router_with(|config| {
            config.kv_events.redis = self::config(&redis);
            // Only what workers have said.
            config.index.predicted_entries = 0;
        })
        .await;
    sees(&mut router, &worker, 4).await;
    redis.freeze();
    worker.store(&chain(7, 4));
    worker.store(&chain(7, 9));
    // Routed all the while, and the worker brings what Redis does not.
    let mut matched = 0;
    let mut n = 0;
    while matched < 9 {
        n += 1;
        matched = router.route(request(n, 200, chain(7, 9))).await.unwrap().matched_blocks;
        router.release([crate::rig::key(n)]).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!worker.subscriptions().is_empty());
    redis.thaw();
}
