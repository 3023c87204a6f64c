//! Reads KV events from Redis: runs what [`crate::domain::kv_reader`] says.
//!
//! One task does it all but loads, so that what is read is applied before anything else is decided. No request waits for it: it takes the
//! router's lock for one batch or one snapshot at a time.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use armature_contracts::ids::WorkerRank;
use armature_contracts::kv::v1 as kv;
use armature_kv_redis::keys::{RankKeys, channel};
use armature_kv_redis::{Command, Connector, Entry, Lost, Pauses, Reply, Store};
use prost::Message as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::directory::Directory;
use super::load::{Loaded, load};
use super::notified::Notified;
use crate::adapters::worker_messages as messages;
use crate::domain::index::wire::Batch;
use crate::domain::kv_reader::{Read, Reader, Remedy, Verdict};
use crate::metrics::{ReasonLabel, RedisMetrics};
use crate::shared::Shared;

/// Every rank is looked at this often, whatever was or was not notified.
const SWEEP: Duration = Duration::from_secs(1);
/// Ranks read in one pipeline.
const RANKS_AT_ONCE: usize = 64;
/// Batches of a rank in one read; with at most 64 KiB each and the ranks above, what one pipeline brings is bounded.
const BATCHES_AT_ONCE: usize = 16;
/// Notifications gather for so long: a busy worker is read once for several batches.
const GATHER: Duration = Duration::from_millis(100);

/// What a reader is given.
pub struct RedisReader<C> {
    /// Where the events are.
    pub redis: Arc<C>,
    /// Deployment.
    pub namespace: String,
    /// Whose events.
    pub directory: Arc<Directory>,
    /// Where they go.
    pub shared: Arc<Shared>,
    /// Snapshots at a time.
    pub loads_at_once: usize,
    /// Largest snapshot taken.
    pub max_snapshot_blocks: u64,
    /// Instruments.
    pub metrics: RedisMetrics,
}

impl<C: Connector> RedisReader<C>
where
    C::Store: Clone,
{
    /// Reads for ever.
    pub async fn run(self) {
        let notified = Arc::new(Notified::default());
        let listener = Arc::clone(&notified).listen(Arc::clone(&self.redis), channel(&self.namespace));
        let _listener = AbortOnDropHandle::new(tokio::spawn(listener));
        let reader = Reader::new(self.loads_at_once, self.shared.now());
        let mut pauses = Pauses::new(self.shared.instance().0);
        let mut turn = Turn {
            parts: self,
            reader,
            notified,
            loads: JoinSet::new(),
            next_sweep: Instant::now(),
            failing: None,
        };
        loop {
            let redis = Arc::clone(&turn.parts.redis);
            let connected = {
                let mut connecting = std::pin::pin!(redis.connect());
                loop {
                    tokio::select! {
                        biased;
                        connected = &mut connecting => break connected,
                        () = turn.pass_time() => {}
                    }
                }
            };
            match connected {
                Ok(mut store) => {
                    turn.up();
                    let Err(lost) = turn.session(&mut store, &mut pauses).await;
                    turn.loads.shutdown().await;
                    turn.reader.loads_lost();
                    turn.down("lost", &lost);
                }
                Err(error) => turn.down(error.name(), &error),
            }
            let pause = Instant::now() + pauses.pause();
            while Instant::now() < pause {
                tokio::select! {
                    biased;
                    () = sleep_until(pause) => {}
                    () = turn.pass_time() => {}
                }
            }
        }
    }
}

/// The state of a running reader.
struct Turn<C> {
    parts: RedisReader<C>,
    reader: Reader,
    notified: Arc<Notified>,
    loads: JoinSet<(WorkerRank, Loaded)>,
    next_sweep: Instant,
    /// What failed last, so that a lasting failure is told once.
    failing: Option<&'static str>,
}

impl<C: Connector> Turn<C>
where
    C::Store: Clone,
{
    /// Waits for the membership or the next sweep, and takes note.
    async fn pass_time(&mut self) {
        tokio::select! {
            biased;
            () = self.parts.directory.changed() => {}
            () = sleep_until(self.next_sweep) => {}
        }
        self.note_time();
    }

    fn note_time(&mut self) {
        let now = self.parts.shared.now();
        self.reader.members(&self.parts.directory.ranks(), now);
        if self.next_sweep <= Instant::now() {
            self.next_sweep = Instant::now() + SWEEP;
            let (reader, shared) = (&mut self.reader, &self.parts.shared);
            shared.with(|router| reader.sweep(|rank| router.kv_view(rank), now));
        }
        self.tell();
    }

    /// Tells the feeds which workers are to be asked.
    fn tell(&mut self) {
        for (rank, remedy) in self.reader.switches() {
            if let Some(remedy) = remedy {
                tracing::debug!(worker = %rank, reason = remedy.name(), "asking the worker for its KV events");
                self.parts.metrics.remedies.get_or_create(&ReasonLabel { reason: remedy.name() }).inc();
            }
            self.parts.directory.ask(rank, remedy.is_some());
        }
        self.parts.metrics.ranks(self.reader.len(), self.reader.watched());
    }

    fn up(&mut self) {
        self.reader.store_up();
        self.parts.metrics.connected.set(1);
        if self.failing.take().is_some() {
            tracing::info!("Redis answers again");
        }
    }

    fn down(&mut self, name: &'static str, error: &dyn std::error::Error) {
        self.reader.store_down(self.parts.shared.now());
        self.parts.metrics.connected.set(0);
        self.parts.metrics.failures.get_or_create(&ReasonLabel { reason: name }).inc();
        if self.failing.replace(name) != Some(name) {
            tracing::error!(%error, "no KV events from Redis; the workers are asked for them meanwhile");
        }
    }

    async fn session(
        &mut self,
        store: &mut C::Store,
        pauses: &mut Pauses,
    ) -> Result<std::convert::Infallible, Lost> {
        loop {
            self.note_time();
            for rank in self.notified.take() {
                self.reader.notified(rank);
            }
            let gathered = Instant::now() + GATHER;
            while self.reader.is_due() {
                if !self.read(store).await? {
                    break;
                }
                pauses.reset();
            }
            let notified = Arc::clone(&self.notified);
            let named = async move {
                // What is notified meanwhile is read together.
                sleep_until(gathered).await;
                notified.named().await;
            };
            tokio::select! {
                biased;
                Some(loaded) = self.loads.join_next(), if !self.loads.is_empty() => self.loaded(loaded)?,
                () = self.parts.directory.changed() => {}
                () = sleep_until(self.next_sweep) => {}
                () = named => {}
            }
        }
    }

    /// Reads what is due; false when nothing was.
    async fn read(&mut self, store: &mut C::Store) -> Result<bool, Lost> {
        let (reader, shared) = (&mut self.reader, &self.parts.shared);
        let reads = shared.with(|router| reader.reads(|rank| router.kv_view(rank), RANKS_AT_ONCE));
        let mut asked = Vec::new();
        let mut commands = Vec::new();
        for read in &reads {
            let (rank, from, count) = match *read {
                Read::Load(rank) => {
                    self.start_load(rank, store.clone());
                    continue;
                }
                Read::Tail { rank, after } => (rank, after + 1, BATCHES_AT_ONCE),
                Read::Probe { rank, mark } => (rank, mark.batch, 1),
            };
            let key = RankKeys::new(&self.parts.namespace, rank).batches;
            commands.push(Command::Read { key, from, count });
            asked.push(*read);
        }
        if !commands.is_empty() {
            let replies = store.run(commands).await?;
            for (read, reply) in asked.into_iter().zip(replies) {
                self.answered(read, reply);
            }
        }
        self.tell();
        Ok(!reads.is_empty())
    }

    fn answered(&mut self, read: Read, reply: Reply) {
        let now = self.parts.shared.now();
        let entries = match reply {
            Reply::Entries(entries) => entries,
            Reply::Refused(refusal) => {
                self.parts.metrics.failures.get_or_create(&ReasonLabel { reason: refusal.name() }).inc();
                if self.failing.replace(refusal.name()) != Some(refusal.name()) {
                    tracing::error!(error = %refusal, "KV events cannot be read; the workers are asked for them meanwhile");
                }
                return;
            }
            _ => return,
        };
        match read {
            Read::Load(_) => {}
            Read::Tail { rank, after } => {
                let ids: Vec<u64> = entries.iter().map(|entry| entry.id).collect();
                let more = ids.len() == BATCHES_AT_ONCE;
                if self.reader.tail(rank, after, &ids, more, now) == Verdict::Apply
                    && let Err(remedy) = self.apply(rank, entries)
                {
                    self.reader.refused(rank, remedy);
                }
            }
            Read::Probe { rank, mark } => {
                let first = entries.into_iter().next().and_then(|entry| self.batch(rank, entry).ok());
                self.reader.probed(rank, mark, first.map(|batch| batch.mark), now);
            }
        }
    }

    fn apply(&self, rank: WorkerRank, entries: Vec<Entry>) -> Result<(), Remedy> {
        for entry in entries {
            let at_ms = entry.at_ms;
            let batch = self.batch(rank, entry)?;
            if let Err(doubt) = self.parts.shared.with(|router| router.kv_batch(rank, &batch)) {
                self.parts.shared.metrics.doubts.get_or_create(&ReasonLabel { reason: doubt.name() }).inc();
                return Err(Remedy::Doubt);
            }
            self.parts.metrics.applied(Duration::from_millis(wall_clock_ms().saturating_sub(at_ms)));
        }
        Ok(())
    }

    /// An entry as a batch of this rank under the entry's own number.
    fn batch(&self, rank: WorkerRank, entry: Entry) -> Result<Batch, Remedy> {
        let unreadable = |_| Remedy::Unreadable;
        let message = kv::KvEventBatch::decode(entry.payload).map_err(|_| Remedy::Unreadable)?;
        let naming = self.parts.directory.naming(rank).ok_or(Remedy::Unreadable)?;
        let batch = messages::batch(message, rank, &naming).map_err(unreadable)?;
        if batch.mark.batch == entry.id { Ok(batch) } else { Err(Remedy::Unreadable) }
    }

    fn start_load(&mut self, rank: WorkerRank, store: C::Store) {
        let Some(naming) = self.parts.directory.naming(rank) else {
            self.reader.loaded(rank, Err(Remedy::NoSnapshot), self.parts.shared.now());
            return;
        };
        let keys = RankKeys::new(&self.parts.namespace, rank);
        let max_blocks = self.parts.max_snapshot_blocks;
        self.loads.spawn(async move { (rank, load(store, keys, rank, naming, max_blocks).await) });
    }

    fn loaded(&mut self, joined: Result<(WorkerRank, Loaded), tokio::task::JoinError>) -> Result<(), Lost> {
        let (rank, loaded) = joined.map_err(|error| Lost(error.to_string()))?;
        let now = self.parts.shared.now();
        let loaded = loaded?;
        let found = loaded.as_ref().map(|_| ()).map_err(|remedy| *remedy);
        if self.reader.loaded(rank, found, now) == Verdict::Apply
            && let Ok(snapshot) = loaded
        {
            match self.parts.shared.with(|router| router.kv_snapshot(rank, &snapshot)) {
                Ok(()) => _ = self.parts.metrics.snapshots.inc(),
                Err(_) => self.reader.refused(rank, Remedy::Doubt),
            }
        }
        self.tell();
        Ok(())
    }
}

fn wall_clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
