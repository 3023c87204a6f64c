//! A worker that reports and publishes what a test tells it to.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_contracts::kv::v1::{
    KvEvent, KvEventBatch, KvRemoved, KvSnapshotChunk, KvStored, Tier, TierBlocks, kv_event,
};
use armature_contracts::kv_hash::{HASH_SCHEME, set_digest};
use armature_contracts::worker::v1::worker_service_server::WorkerService;
use armature_contracts::worker::v1::*;
use futures_util::Stream;
use tokio::sync::broadcast;
use tonic::{Request, Response, Status, Streaming};

pub const BLOCK_SIZE: u32 = 16;

/// Clones are the same worker.
#[derive(Clone)]
pub struct FakeWorker {
    pub rank: WorkerRank,
    state: Arc<Mutex<State>>,
    reports: broadcast::Sender<WatchStateResponse>,
    batches: broadcast::Sender<Option<KvEventBatch>>,
}

#[derive(Default)]
struct State {
    seq: u64,
    load: RankState,
    draining: bool,
    silent: bool,
    settled: Vec<Settled>,
    set: BTreeSet<u64>,
    batch: u64,
    snapshots: usize,
    subscriptions: Vec<u64>,
}

impl FakeWorker {
    pub fn new(id: u64) -> Self {
        Self {
            rank: WorkerRank::first(InstanceId(id)),
            state: Arc::default(),
            reports: broadcast::channel(64).0,
            batches: broadcast::channel(64).0,
        }
    }

    pub fn id(&self) -> u64 {
        self.rank.instance.0
    }

    /// Never reports.
    pub fn silent(self) -> Self {
        self.state.lock().unwrap().silent = true;
        self
    }

    /// Reports a load.
    pub fn load(&self, change: impl FnOnce(&mut RankState)) {
        change(&mut self.state.lock().unwrap().load);
        self.report(Vec::new());
    }

    /// Reports what became of a reservation.
    pub fn settle(&self, key: ReservationKey, settlement: Settlement, prefill: Option<WorkerRank>) {
        let settled = Settled {
            reservation: Some(key.into()),
            settlement: settlement.into(),
            prefill_worker: prefill.map(Into::into),
        };
        self.state.lock().unwrap().settled.push(settled.clone());
        self.report(vec![settled]);
    }

    /// Reports that it drains.
    pub fn drain(&self) {
        self.state.lock().unwrap().draining = true;
        self.report(Vec::new());
    }

    fn report(&self, settled: Vec<Settled>) {
        let message = self.state.lock().unwrap().report(self.rank, settled);
        let _ = self.reports.send(message);
    }

    /// Stores blocks of one sequence from its start and publishes that.
    pub fn store(&self, blocks: &[u64]) {
        let batch = self.state.lock().unwrap().store(self.rank, blocks);
        let _ = self.batches.send(Some(batch));
    }

    /// Evicts blocks and publishes that.
    pub fn evict(&self, blocks: &[u64]) {
        let batch = self.state.lock().unwrap().evict(self.rank, blocks);
        let _ = self.batches.send(Some(batch));
    }

    /// Stores blocks, but the batch that says so is lost.
    pub fn store_unseen(&self, blocks: &[u64]) {
        self.state.lock().unwrap().store(self.rank, blocks);
    }

    /// Stores blocks and publishes a wrong digest.
    pub fn store_with_wrong_digest(&self, blocks: &[u64]) {
        let mut batch = self.state.lock().unwrap().store(self.rank, blocks);
        batch.digest ^= 1;
        let _ = self.batches.send(Some(batch));
    }

    /// Ends every WatchKv stream.
    pub fn cut_kv(&self) {
        let _ = self.batches.send(None);
    }

    pub fn blocks(&self) -> u64 {
        self.state.lock().unwrap().set.len() as u64
    }

    /// Snapshots given so far.
    pub fn snapshots(&self) -> usize {
        self.state.lock().unwrap().snapshots
    }

    /// from_batch of every WatchKv so far.
    pub fn subscriptions(&self) -> Vec<u64> {
        self.state.lock().unwrap().subscriptions.clone()
    }
}

impl State {
    fn report(&mut self, rank: WorkerRank, settled: Vec<Settled>) -> WatchStateResponse {
        self.seq += 1;
        WatchStateResponse {
            report_seq: self.seq,
            instance_id: rank.instance.0,
            ranks: vec![self.load.clone()],
            settled,
            draining: self.draining,
        }
    }

    fn store(&mut self, rank: WorkerRank, blocks: &[u64]) -> KvEventBatch {
        let fresh: Vec<_> = blocks.iter().copied().filter(|hash| !self.set.contains(hash)).collect();
        let parent = blocks.iter().copied().take_while(|hash| self.set.contains(hash)).last();
        self.set.extend(&fresh);
        let stored = KvStored { tier: Tier::Device.into(), parent, sequence_hashes: fresh };
        self.batch(rank, kv_event::Event::Stored(stored))
    }

    fn evict(&mut self, rank: WorkerRank, blocks: &[u64]) -> KvEventBatch {
        blocks.iter().for_each(|hash| assert!(self.set.remove(hash)));
        let removed = KvRemoved { tier: Tier::Device.into(), sequence_hashes: blocks.to_vec() };
        self.batch(rank, kv_event::Event::Removed(removed))
    }

    fn batch(&mut self, rank: WorkerRank, event: kv_event::Event) -> KvEventBatch {
        self.batch += 1;
        KvEventBatch {
            worker: Some(rank.into()),
            batch: self.batch,
            events: vec![KvEvent { event: Some(event) }],
            count: self.set.len() as u64,
            digest: self.digest(),
            hash_scheme: HASH_SCHEME.into(),
            block_size: BLOCK_SIZE,
        }
    }

    /// The set in two chunks.
    fn snapshot(&mut self, rank: WorkerRank) -> Vec<KvSnapshotChunk> {
        self.snapshots += 1;
        let all: Vec<_> = self.set.iter().copied().collect();
        let (first, second) = all.split_at(all.len() / 2);
        let chunk = |(chunk, hashes): (usize, &[u64])| KvSnapshotChunk {
            worker: Some(rank.into()),
            batch: self.batch,
            chunk: chunk as u32,
            chunks: 2,
            blocks: vec![TierBlocks { tier: Tier::Device.into(), sequence_hashes: hashes.to_vec() }],
            count: all.len() as u64,
            digest: self.digest(),
            hash_scheme: HASH_SCHEME.into(),
            block_size: BLOCK_SIZE,
        };
        [first, second].into_iter().enumerate().map(chunk).collect()
    }

    fn digest(&self) -> u64 {
        set_digest(self.set.iter().map(|hash| (*hash, Tier::Device as u8)))
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerService for FakeWorker {
    type GenerateStream = Answers<GenerateResponse>;

    async fn generate(&self, _: Request<GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        Err(Status::unimplemented("no engine here"))
    }

    type PrefillStream = Answers<PrefillResponse>;

    async fn end_choices(
        &self,
        _: Request<EndChoicesRequest>,
    ) -> Result<Response<EndChoicesResponse>, Status> {
        Err(Status::unimplemented("a router does not call it"))
    }

    async fn prefill(
        &self,
        _: Request<Streaming<PrefillRequest>>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        Err(Status::unimplemented("no engine here"))
    }

    type WatchStateStream = Answers<WatchStateResponse>;

    async fn watch_state(
        &self,
        _: Request<WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        let mut reports = self.reports.subscribe();
        let worker = self.clone();
        let stream = async_stream(async move |answers| {
            if worker.state.lock().unwrap().silent {
                return std::future::pending().await;
            }
            let first = {
                let mut state = worker.state.lock().unwrap();
                let settled = state.settled.clone();
                state.report(worker.rank, settled)
            };
            if answers.send(Ok(first)).await.is_err() {
                return;
            }
            loop {
                let second = tokio::time::sleep(std::time::Duration::from_secs(1));
                let report = tokio::select! {
                    report = reports.recv() => report.unwrap(),
                    () = second => worker.state.lock().unwrap().report(worker.rank, Vec::new()),
                };
                if answers.send(Ok(report)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(stream))
    }

    type WatchKvStream = Answers<WatchKvResponse>;

    async fn watch_kv(
        &self,
        request: Request<WatchKvRequest>,
    ) -> Result<Response<Self::WatchKvStream>, Status> {
        use watch_kv_response::Event;
        let from = request.into_inner().from_batch;
        let (mut batches, first) = {
            let mut state = self.state.lock().unwrap();
            state.subscriptions.push(from);
            let resumes = from == state.batch + 1;
            let chunks = if resumes { Vec::new() } else { state.snapshot(self.rank) };
            (self.batches.subscribe(), chunks)
        };
        let stream = async_stream(async move |answers| {
            for chunk in first {
                let message = WatchKvResponse { event: Some(Event::Snapshot(chunk)) };
                if answers.send(Ok(message)).await.is_err() {
                    return;
                }
            }
            while let Ok(Some(batch)) = batches.recv().await {
                let message = WatchKvResponse { event: Some(Event::Batch(batch)) };
                if answers.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(stream))
    }
}

/// A stream fed by a task that ends with its reader.
fn async_stream<T: Send + 'static, F>(
    feed: impl FnOnce(tokio::sync::mpsc::Sender<Result<T, Status>>) -> F,
) -> Answers<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (answers, stream) = tokio::sync::mpsc::channel(16);
    let closed = answers.clone();
    let work = feed(answers);
    tokio::spawn(async move {
        tokio::select! {
            () = work => {}
            () = closed.closed() => {}
        }
    });
    Box::pin(tokio_stream::wrappers::ReceiverStream::new(stream))
}
