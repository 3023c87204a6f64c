//! An event log without a worker around it: the worker's own, fed by a test.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use armature_contracts::ids::WorkerRank;
use armature_worker::domain::kv_events::{
    KvBatch, KvEvents, KvEventsConfig, KvSnapshot, KvState, SequenceHash, Tier,
};
use armature_worker::domain::kv_publisher::LogRange;
use armature_worker::domain::time::Time;
use armature_worker::identity::Identity;
use armature_worker::ports::{KvGeometry, KvLog, ModelSpec};
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _};
use tokio::sync::watch;
use tokio::time::Instant;

/// Tokens per block of every worker here.
pub const BLOCK_SIZE: u32 = 16;

/// The log of one worker.
#[derive(Debug)]
pub struct Log {
    state: Mutex<State>,
    announced: watch::Sender<u64>,
    start: Instant,
    rank: WorkerRank,
}

#[derive(Debug)]
struct State {
    events: KvEvents,
    present: Vec<u64>,
    /// Hashes removed and not stored since, the latest ones.
    removed: BTreeSet<u64>,
    /// What the set was after each batch, and when that was cut: index 0 is batch 0.
    history: Vec<(KvState, Instant)>,
    keep_history: bool,
}

impl Log {
    /// An empty log of `rank`; `keep_history` remembers what the set was after every batch.
    pub fn new(rank: WorkerRank, keep_history: bool) -> Arc<Self> {
        let events = KvEvents::new(KvEventsConfig::default());
        let history = vec![(events.last_state(), Instant::now())];
        let state = State { events, present: Vec::new(), removed: BTreeSet::new(), history, keep_history };
        Arc::new(Self {
            state: Mutex::new(state),
            announced: watch::Sender::new(0),
            start: Instant::now(),
            rank,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the log; batches that this cuts are announced.
    pub fn with<R>(&self, step: impl FnOnce(&mut KvEvents, Time) -> R) -> R {
        let mut state = self.lock();
        let now = self.time();
        let result = step(&mut state.events, now);
        self.announce(&mut state);
        result
    }

    fn announce(&self, state: &mut State) {
        let last = state.events.last_state();
        if state.keep_history {
            let missing = state.history.len() as u64;
            for number in missing..=last.batch {
                let after = match state.events.batch(number) {
                    Some(batch) => KvState { batch: number, count: batch.count, digest: batch.digest },
                    None => last,
                };
                state.history.push((after, Instant::now()));
            }
        }
        self.announced.send_if_modified(|known| std::mem::replace(known, last.batch) != last.batch);
    }

    /// Stores `stored` fresh blocks and removes `removed` of those present, in an order of `rng`.
    pub fn change(&self, rng: &mut StdRng, stored: usize, removed: usize) {
        let mut state = self.lock();
        let now = self.time();
        let state = &mut *state;
        for _ in 0..stored {
            // Sometimes one that was removed before: it comes back rightly.
            let again = state.removed.pop_first().filter(|_| rng.random_bool(0.2));
            let hash = again.unwrap_or_else(|| rng.next_u64());
            state.present.push(hash);
            state.events.stored(SequenceHash(hash), Tier::DEVICE, now);
        }
        for _ in 0..removed.min(state.present.len()) {
            let at = rng.random_range(0..state.present.len());
            let hash = state.present.swap_remove(at);
            state.events.removed(SequenceHash(hash), Tier::DEVICE, now);
            state.removed.insert(hash);
            if state.removed.len() > 64 {
                state.removed.pop_first();
            }
        }
    }

    /// Cuts what is due.
    pub fn poll(&self) {
        let mut state = self.lock();
        let now = self.time();
        while state.events.poll(now).is_some() {}
        self.announce(&mut state);
    }

    /// Cuts everything that waits.
    pub fn flush(&self) {
        self.with(|events, now| _ = events.snapshot(now));
    }

    /// Cuts what is due for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.poll();
            let due = self.with(|events, now| events.next_due().since(now));
            tokio::time::sleep(due.clamp(Duration::from_millis(1), Duration::from_millis(50))).await;
        }
    }

    /// The set after the last batch.
    pub fn last_state(&self) -> KvState {
        self.with(|events, _| events.last_state())
    }

    /// What the set was after batch `number`.
    pub fn state_after(&self, number: u64) -> Option<KvState> {
        self.lock().history.get(number as usize).map(|(state, _)| *state)
    }

    /// When batch `number` was cut.
    pub fn cut_at(&self, number: u64) -> Option<Instant> {
        self.lock().history.get(number as usize).map(|(_, at)| *at)
    }

    /// Blocks that were removed and are not present.
    pub fn removed(&self) -> Vec<u64> {
        self.lock().removed.iter().copied().collect()
    }

    fn time(&self) -> Time {
        Time(self.start.elapsed())
    }
}

impl KvLog for Log {
    fn rank(&self) -> WorkerRank {
        self.rank
    }

    fn fenced(&self, _me: WorkerRank) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    fn range(&self, _me: WorkerRank) -> Option<LogRange> {
        Some(self.with(|events, _| LogRange { first: events.first_batch(), last: events.last_batch() }))
    }

    fn batch(&self, _me: WorkerRank, number: u64) -> Option<Arc<KvBatch>> {
        self.with(|events, _| events.batch(number))
    }

    fn snapshot(&self, _me: WorkerRank) -> Option<KvSnapshot> {
        Some(self.with(|events, now| {
            events.begin(now);
            events.snapshot(now).0
        }))
    }

    fn announced(&self) -> watch::Receiver<u64> {
        self.announced.subscribe()
    }

    fn now(&self) -> Time {
        self.time()
    }
}

/// What every worker here is.
pub fn identity() -> Identity {
    let spec = ModelSpec {
        model_digest: [1; 32],
        name: "model".into(),
        vocab_size: 256,
        context_length: 100_000,
        kv: KvGeometry { layers: 1, kv_heads: 1, head_dim: 1, block_size: BLOCK_SIZE as usize },
        rope: String::new(),
        kernel: "none".into(),
        eos_token_ids: Vec::new(),
        bos_token_id: None,
    };
    Identity::new(spec)
}
