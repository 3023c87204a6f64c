//! A router's index and its reader of Redis, without the rest of a router.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1::ModelCard;
use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_contracts::kv_hash::HASH_SCHEME;
use armature_kv_redis::Connector;
use armature_router::adapters::redis::directory::Stay;
use armature_router::adapters::redis::{Directory, RedisReader};
use armature_router::adapters::{cards, worker_messages as messages};
use armature_router::config::Config;
use armature_router::domain::index::RankBlocks;
use armature_router::domain::index::snapshot::Assembly;
use armature_router::domain::index::wire::Mark;
use armature_router::domain::load::Report;
use armature_router::domain::units::SequenceHash;
use armature_router::metrics::{Metrics, ReasonLabel, RedisMetrics};
use armature_router::shared::Shared;
use armature_svc_kit::address::Address;
use armature_svc_kit::discovery_client::{Component, Instance};
use armature_worker::domain::kv_events::{KvBatch, KvSnapshot};
use armature_worker::kv_wire;
use armature_worker::ports::KvLog as _;
use prometheus_client::registry::Registry;
use tokio::task::AbortHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::log::{BLOCK_SIZE, Log, identity};

/// A worker as a router sees it.
#[derive(Clone)]
pub struct Seen {
    /// Its one rank.
    pub rank: WorkerRank,
    /// Its log: what WatchKv and WatchState would bring.
    pub log: Arc<Log>,
}

/// The reading half of a router. Everything ends when it is dropped.
pub struct RouterHalf {
    /// Its state.
    pub shared: Arc<Shared>,
    /// Instruments of its reader.
    pub metrics: RedisMetrics,
    directory: Arc<Directory>,
    _reader: AbortOnDropHandle<()>,
    followed: Vec<(WorkerRank, AbortHandle)>,
}

impl Drop for RouterHalf {
    fn drop(&mut self) {
        self.followed.iter().for_each(|(_, task)| task.abort());
    }
}

impl RouterHalf {
    /// Starts an empty one of at most `max_entries` blocks.
    pub fn start<C: Connector>(redis: C, namespace: &str, instance: InstanceId, max_entries: usize) -> Self
    where
        C::Store: Clone,
    {
        let mut config = Config::default();
        config.index.max_entries = max_entries;
        let mut registry = Registry::default();
        let valid = config.validate().expect("the defaults are valid");
        let metrics = RedisMetrics::new(&mut registry);
        let shared = Shared::new(&config, valid, instance, instance.0, Metrics::new(&mut registry), None);
        let directory = Arc::new(Directory::default());
        let reader = RedisReader {
            redis: Arc::new(redis),
            namespace: namespace.to_owned(),
            directory: directory.clone(),
            shared: shared.clone(),
            loads_at_once: config.feed.snapshots_at_once,
            max_snapshot_blocks: max_entries as u64,
            metrics: metrics.clone(),
        };
        let reader = AbortOnDropHandle::new(tokio::spawn(reader.run()));
        Self { shared, metrics, directory, _reader: reader, followed: Vec::new() }
    }

    /// Takes the present workers.
    pub fn members(&mut self, workers: &[Seen]) {
        let card = ModelCard {
            block_size: BLOCK_SIZE,
            kv_blocks: 1_000_000,
            context_length: 100_000,
            hash_scheme: HASH_SCHEME.into(),
            ..ModelCard::default()
        };
        let mut members = Vec::new();
        for worker in workers {
            let address = Address::mem("worker");
            let instance = Instance::starting(worker.rank.instance, "default", Component::Worker, &address);
            members.extend(cards::workers(&instance, &card).expect("the card is sound"));
        }
        let naming = members.first().map(cards::naming);
        let now = self.shared.now();
        self.shared.with(|router| router.members(members, now));
        self.followed.retain(|(rank, task)| {
            let stays = workers.iter().any(|worker| worker.rank == *rank);
            if !stays {
                task.abort();
            }
            stays
        });
        for worker in workers {
            let Some(naming) = naming.clone() else { return };
            if self.followed.iter().any(|(rank, _)| *rank == worker.rank) {
                continue;
            }
            let stay = self.directory.join(worker.rank, naming.clone());
            let follow = follow(self.shared.clone(), worker.clone(), naming, stay);
            self.followed.push((worker.rank, tokio::spawn(follow).abort_handle()));
        }
    }

    /// How far a rank is known.
    pub fn mark(&self, rank: WorkerRank) -> Option<Mark> {
        self.shared.with(|router| router.kv_mark(rank))
    }

    /// What the index holds of a rank.
    pub fn held(&self, rank: WorkerRank) -> RankBlocks {
        let views = self.shared.with(|router| router.views());
        views.iter().find(|view| view.worker.rank == rank).map_or_else(RankBlocks::default, |view| view.held)
    }

    /// Whether the index says that `rank` has `hash`.
    pub fn has(&self, rank: WorkerRank, hash: u64) -> bool {
        self.shared.with(|router| router.find(&[SequenceHash(hash)]).of(rank).0 > 0)
    }

    /// How often workers were asked themselves for this reason.
    pub fn remedies(&self, reason: &'static str) -> u64 {
        self.metrics.remedies.get_or_create(&ReasonLabel { reason }).get()
    }
}

/// Stands for the streams WatchState and WatchKv of one worker: says how far its events go each second, and brings them while it is asked.
async fn follow(shared: Arc<Shared>, worker: Seen, naming: messages::BlockNaming, mut stay: Stay) {
    let state = async {
        loop {
            let now = shared.now();
            let kv_batch = worker.log.last_state().batch;
            let report = Report { kv_batch, received: now, ..Report::default() };
            shared.report(worker.rank.instance, vec![(worker.rank, report)], &[]);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let asked = async {
        loop {
            stay.asked(true).await;
            tokio::select! {
                biased;
                () = stay.asked(false) => {}
                () = watch_kv(&shared, &worker, &naming) => {}
            }
        }
    };
    tokio::join!(state, asked);
}

async fn watch_kv(shared: &Shared, worker: &Seen, naming: &messages::BlockNaming) {
    let mut announced = worker.log.announced();
    loop {
        announced.mark_unchanged();
        let known = shared.with(|router| router.kv_mark(worker.rank));
        let batches = known.and_then(|mark| worker.log.with(|events, _| events.resume(mark.batch + 1)));
        let taken = match batches {
            Some(batches) => batches.iter().try_for_each(|batch| apply(shared, worker, naming, batch)),
            None => replace(shared, worker, naming, &worker.log.with(|events, now| events.snapshot(now).0)),
        };
        if taken.is_none() {
            shared.with(|router| router.kv_doubt(worker.rank));
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        if announced.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn apply(shared: &Shared, worker: &Seen, naming: &messages::BlockNaming, batch: &KvBatch) -> Option<()> {
    let message = kv_wire::batch(batch, worker.rank, &identity());
    let batch = messages::batch(message, worker.rank, naming).ok()?;
    shared.with(|router| router.kv_batch(worker.rank, &batch)).ok()
}

fn replace(shared: &Shared, worker: &Seen, naming: &messages::BlockNaming, taken: &KvSnapshot) -> Option<()> {
    let me = identity();
    let mut assembly = Assembly::new(u64::MAX);
    for at in 0..kv_wire::chunks(taken) {
        let chunk = messages::chunk(kv_wire::chunk(taken, worker.rank, &me, at), worker.rank, naming).ok()?;
        if let Some(snapshot) = assembly.push(chunk).ok()? {
            return shared.with(|router| router.kv_snapshot(worker.rank, &snapshot)).ok();
        }
    }
    None
}
