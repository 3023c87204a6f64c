//! armature-prefix-index.

use std::time::Duration;

use armature_prefix_index::{Index, Options, Parent, Search, Worker};
use cpu_time::ThreadTime;

use crate::measure::Subject;
use crate::workload::{Chain, Shape, Stored};

pub(crate) struct Ours {
    index: Index,
    workers: Vec<Worker>,
}

pub(crate) fn index(max_bytes: usize) -> Index {
    let index = Index::new(Options {
        max_bytes,
        shards: 1,
        max_workers: 4_096,
        keys: [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9],
        digest: |hash, tier| armature_kv_hash::block_digest(hash, tier + 1),
    });
    index.expect("the budget holds an empty index")
}

impl Ours {
    pub(crate) fn new(shape: &Shape) -> Self {
        let index = index(1 << 30);
        let workers = (0..shape.workers).map(|_| index.add_worker().expect("there is room")).collect();
        Self { index, workers }
    }
}

impl Subject for Ours {
    type Search = Search;
    const QUEUES: bool = false;

    fn store(&self, stored: Stored<'_>) {
        let parent = stored.parent.map_or(Parent::Root, Parent::Block);
        self.index.store(self.workers[stored.worker as usize], parent, stored.sequence, 0);
    }

    fn expect(&self, blocks: &[u64]) {
        self.index.expect(blocks);
    }

    fn remove(&self, worker: u64, blocks: &[u64]) {
        self.index.remove(self.workers[worker as usize], blocks, 0);
    }

    fn write(&self, make: &mut dyn FnMut()) -> Duration {
        let start = ThreadTime::now();
        make();
        start.elapsed()
    }

    fn settle(&self) {}

    fn find(&self, prompt: &Chain, search: &mut Search) -> (usize, u32) {
        let found = self.index.find(&prompt.sequence, search);
        (found.len(), found.iter().map(|(_, depth)| *depth).max().unwrap_or(0))
    }
}
