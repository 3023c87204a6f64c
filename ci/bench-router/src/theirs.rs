//! dynamo-kv-router's `ConcurrentRadixTreeCompressed`, with a thread that runs its worker loop.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cpu_time::ProcessTime;
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};

use crate::measure::Subject;
use crate::workload::{Chain, Stored};

pub(crate) struct Theirs {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    /// Events that are made and not yet sent.
    made: Mutex<Vec<WorkerTask>>,
}

impl Theirs {
    pub(crate) fn new() -> Self {
        let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (tasks, received) = flume::unbounded();
        let worker = tree.clone();
        std::thread::spawn(move || worker.worker(received, None).expect("the worker loop ends well"));
        Self { tree, tasks, made: Mutex::default() }
    }

    fn made(&self, worker: u64, data: KvCacheEventData) {
        let event = RouterEvent::new(worker, KvCacheEvent { event_id: 1, data, dp_rank: 0 });
        self.made.lock().unwrap().push(WorkerTask::Event(event));
    }
}

impl Subject for Theirs {
    type Search = ();
    const QUEUES: bool = true;

    fn store(&self, stored: Stored<'_>) {
        let block = |(sequence, local): (&u64, &LocalBlockHash)| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(*sequence),
            tokens_hash: *local,
            mm_extra_info: None,
        };
        let data = KvCacheStoreData {
            parent_hash: stored.parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: stored.sequence.iter().zip(stored.local).map(block).collect(),
        };
        self.made(stored.worker, KvCacheEventData::Stored(data));
    }

    fn expect(&self, _: &[u64]) {}

    fn remove(&self, worker: u64, blocks: &[u64]) {
        let block_hashes = blocks.iter().copied().map(ExternalSequenceBlockHash).collect();
        self.made(worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }));
    }

    fn write(&self, make: &mut dyn FnMut()) -> Duration {
        make();
        // This thread only sends and sleeps meanwhile; the rest is the worker loop's.
        let start = ProcessTime::now();
        self.settle();
        start.elapsed()
    }

    fn settle(&self) {
        for task in self.made.lock().unwrap().drain(..) {
            self.tasks.send(task).expect("the worker loop runs");
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.tasks.send(WorkerTask::Flush(sender)).expect("the worker loop runs");
        receiver.blocking_recv().expect("the worker loop answers");
    }

    fn find(&self, prompt: &Chain, (): &mut ()) -> (usize, u32) {
        let found = self.tree.find_matches(&prompt.local, false).scores;
        (found.len(), found.values().copied().max().unwrap_or(0))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        _ = self.tasks.send(WorkerTask::Terminate);
    }
}
