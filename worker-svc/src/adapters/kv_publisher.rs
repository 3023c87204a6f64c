//! Publishes the event log to Redis: runs the steps of [`crate::domain::kv_publisher`], one at a time.
//!
//! Nothing waits for it. While Redis is away the log goes on by itself: it keeps its ring of batches and no more, and what falls out of the ring
//! is covered by the next snapshot.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use armature_contracts::ids::WorkerRank;
use armature_kv_redis::keys::{Notice, RankKeys, channel};
use armature_kv_redis::{Command, Connector, Entry, Lost, Pauses, Refusal, Reply, Store};
use bytes::Bytes;
use prost::Message as _;

use crate::domain::kv_events::KvSnapshot;
use crate::domain::kv_publisher::{Outcome, Publisher, Step, TIME_TO_LIVE};
use crate::identity::Identity;
use crate::kv_wire;
use crate::metrics::RedisMetrics;
use crate::ports::KvLog;

/// Pointers kept: that of the newest snapshot and the one before.
const POINTERS: u32 = 2;

/// Publishes the log of one rank.
pub struct KvPublisher<L, C> {
    log: Arc<L>,
    redis: C,
    identity: Identity,
    namespace: String,
    /// The incarnation that is published.
    me: WorkerRank,
    keys: RankKeys,
    metrics: RedisMetrics,
    pauses: Pauses,
    /// What failed last, so that a lasting failure is told once.
    failing: Option<&'static str>,
}

/// What one step came to.
struct Done {
    outcome: Outcome,
    refused: Option<Refusal>,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, refused: None }
    }
}

impl<L: KvLog, C: Connector> KvPublisher<L, C> {
    /// A publisher of `log` in `namespace`.
    pub fn new(log: Arc<L>, redis: C, identity: Identity, namespace: &str, metrics: RedisMetrics) -> Self {
        let me = log.rank();
        Self {
            keys: RankKeys::new(namespace, me),
            namespace: namespace.to_owned(),
            pauses: Pauses::new(me.instance.0),
            log,
            redis,
            identity,
            me,
            metrics,
            failing: None,
        }
    }

    /// Publishes until it is dropped, each incarnation under its own keys. What a fenced one leaves expires.
    pub async fn run(mut self) {
        let log = Arc::clone(&self.log);
        loop {
            self.me = log.rank();
            self.keys = RankKeys::new(&self.namespace, self.me);
            let me = self.me;
            tokio::select! {
                biased;
                () = log.fenced(me) => {}
                () = self.publish() => {}
            }
        }
    }

    async fn publish(&mut self) {
        let mut publisher = Publisher::new();
        loop {
            match self.redis.connect().await {
                Ok(store) => {
                    let lost = self.session(store, &mut publisher).await;
                    self.failed("lost", &lost).await;
                }
                Err(error) => self.failed(error.name(), &error).await,
            }
        }
    }

    async fn session(&mut self, mut store: C::Store, publisher: &mut Publisher) -> Lost {
        let mut announced = self.log.announced();
        let mut snapshot = None;
        loop {
            announced.mark_unchanged();
            let Some(range) = self.log.range(self.me) else {
                // Fenced: this ends at once.
                return std::future::pending().await;
            };
            self.metrics.behind(range.last.saturating_sub(publisher.acknowledged()));
            let step = publisher.step(range, self.log.now());
            if step == Step::Wait {
                if announced.changed().await.is_err() {
                    // The log is gone, and this with it.
                    std::future::pending::<()>().await;
                }
                continue;
            }
            let done = match self.perform(&step, &mut store, &mut snapshot).await {
                Ok(done) => done,
                Err(lost) => {
                    publisher.done(&step, Outcome::Lost, self.log.now());
                    return lost;
                }
            };
            publisher.done(&step, done.outcome, self.log.now());
            match done.refused {
                Some(refusal) => self.failed(refusal.name(), &refusal).await,
                None if publisher.is_steady() => self.works(),
                None => {}
            }
        }
    }

    async fn perform(
        &self,
        step: &Step,
        store: &mut C::Store,
        snapshot: &mut Option<KvSnapshot>,
    ) -> Result<Done, Lost> {
        let keys = &self.keys;
        match step {
            Step::Wait => Ok(Outcome::Done.into()),
            Step::Look => {
                let newest = |key: &str, count| Command::Newest { key: key.to_owned(), count };
                let replies = store.run(vec![newest(&keys.batches, 1), newest(&keys.snapshots, 2)]).await?;
                Ok(looked(replies))
            }
            Step::Compare { number } => {
                let read = Command::Read { key: keys.batches.clone(), from: *number, count: 1 };
                let replies = store.run(vec![read]).await?;
                Ok(self.compared(*number, replies))
            }
            Step::Append { number, renew } => self.append(*number, renew.as_deref(), store).await,
            Step::TakeSnapshot => {
                let Some(taken) = self.log.snapshot(self.me) else { return Ok(Outcome::Refused.into()) };
                let (at, blocks, chunks) = (taken.at, taken.entries.len() as u64, kv_wire::chunks(&taken));
                *snapshot = Some(taken);
                Ok(Outcome::Taken { at, chunks, blocks }.into())
            }
            Step::Chunk { at, chunk } => {
                let Some(taken) = snapshot.as_ref().filter(|taken| taken.at == *at) else {
                    return Ok(Outcome::Refused.into());
                };
                let key = keys.chunks(*at);
                let payload = kv_wire::chunk(taken, self.me, &self.identity, *chunk).encode_to_vec().into();
                let put = Command::PutChunk { key: key.clone(), chunk: *chunk, payload };
                Ok(simple(store.run(vec![put, expire(key)]).await?))
            }
            Step::Point { at } => {
                // Its chunks are written: what is left of it is the pointer.
                let Some(taken) = snapshot.take().filter(|taken| taken.at == *at) else {
                    return Ok(Outcome::Refused.into());
                };
                let point = Command::Append {
                    key: keys.snapshots.clone(),
                    id: *at,
                    payload: kv_wire::pointer(&taken, self.me, &self.identity).encode_to_vec().into(),
                    at_ms: wall_clock_ms(),
                    keep: Some(POINTERS),
                };
                let done =
                    simple(store.run(vec![point, expire(keys.snapshots.clone()), self.notify()]).await?);
                if done.outcome == Outcome::Done {
                    self.metrics.snapshots.inc();
                }
                Ok(done)
            }
            Step::Tidy { drop, below } => {
                let mut commands: Vec<_> =
                    drop.iter().map(|at| Command::Drop { key: keys.chunks(*at) }).collect();
                commands.extend(below.map(|below| Command::Trim { key: keys.batches.clone(), below }));
                Ok(simple(store.run(commands).await?))
            }
            Step::Clear => {
                let drop = |key: &String| Command::Drop { key: key.clone() };
                Ok(simple(store.run(vec![drop(&keys.snapshots), drop(&keys.batches)]).await?))
            }
        }
    }

    async fn append(&self, number: u64, renew: Option<&[u64]>, store: &mut C::Store) -> Result<Done, Lost> {
        let keys = &self.keys;
        let Some(batch) = self.log.batch(self.me, number) else {
            // It fell out of the ring just now: the next step sees that.
            return Ok(Outcome::Refused.into());
        };
        let append = Command::Append {
            key: keys.batches.clone(),
            id: number,
            payload: self.payload(&batch),
            at_ms: wall_clock_ms(),
            keep: None,
        };
        let mut commands = vec![append, self.notify()];
        if let Some(snapshots) = renew {
            commands.push(expire(keys.batches.clone()));
            commands.extend((!snapshots.is_empty()).then(|| expire(keys.snapshots.clone())));
            commands.extend(snapshots.iter().map(|at| expire(keys.chunks(*at))));
        }
        let replies = store.run(commands).await?;
        if let Some(Reply::Refused(refusal)) = replies.get(1) {
            // Readers find the batch by their sweep, a second later at the most.
            self.metrics.failed("notify");
            tracing::debug!(%refusal, "a notification is refused");
        }
        // The stream is there: this has just written to it. An older snapshot may be gone.
        let renewed = replies.iter().skip(3).take(2).all(|reply| *reply != Reply::Present(false));
        Ok(match replies.into_iter().next() {
            Some(Reply::Refused(Refusal::NotGreater)) => Outcome::NotGreater.into(),
            Some(Reply::Refused(refusal)) => refused(refusal),
            _ => {
                self.metrics.batches.inc();
                let changes = (batch.stored.len() + batch.removed.len()) as u64;
                Outcome::Appended { changes, renewed }.into()
            }
        })
    }

    fn compared(&self, number: u64, replies: Vec<Reply>) -> Done {
        let Some(batch) = self.log.batch(self.me, number) else { return Outcome::Compared(None).into() };
        match replies.into_iter().next() {
            Some(Reply::Refused(refusal)) => refused(refusal),
            Some(Reply::Entries(entries)) => {
                let ours = entries
                    .first()
                    .is_some_and(|entry: &Entry| entry.id == number && entry.payload == self.payload(&batch));
                Outcome::Compared(Some(ours)).into()
            }
            _ => Outcome::Compared(Some(false)).into(),
        }
    }

    /// The same bytes whenever it is asked: a batch never changes.
    fn payload(&self, batch: &crate::domain::kv_events::KvBatch) -> Bytes {
        kv_wire::batch(batch, self.me, &self.identity).encode_to_vec().into()
    }

    fn notify(&self) -> Command {
        Command::Notify { channel: channel(&self.namespace), notice: Notice(self.me).to_string() }
    }

    fn works(&mut self) {
        self.pauses.reset();
        self.metrics.connected.set(1);
        if self.failing.take().is_some() {
            tracing::info!("KV events reach Redis again");
        }
    }

    async fn failed(&mut self, name: &'static str, error: &(dyn std::error::Error + Sync)) {
        self.metrics.connected.set(0);
        self.metrics.failed(name);
        if self.failing.replace(name) != Some(name) {
            tracing::error!(%error, "KV events do not reach Redis; routers ask this worker for them meanwhile");
        }
        tokio::time::sleep(self.pauses.pause()).await;
    }
}

fn expire(key: String) -> Command {
    Command::Expire { key, after: TIME_TO_LIVE }
}

fn refused(refusal: Refusal) -> Done {
    Done { outcome: Outcome::Refused, refused: Some(refusal) }
}

/// Of a step that is done when none of its commands is refused.
fn simple(replies: Vec<Reply>) -> Done {
    for reply in replies {
        match reply {
            Reply::Refused(Refusal::NotGreater) => return Outcome::NotGreater.into(),
            Reply::Refused(refusal) => return refused(refusal),
            _ => {}
        }
    }
    Outcome::Done.into()
}

fn looked(replies: Vec<Reply>) -> Done {
    let mut numbers = Vec::new();
    for reply in replies {
        match reply {
            Reply::Entries(entries) => numbers.push(entries.iter().map(|entry| entry.id).collect::<Vec<_>>()),
            Reply::Refused(refusal) => return refused(refusal),
            _ => numbers.push(Vec::new()),
        }
    }
    let mut numbers = numbers.into_iter();
    let last = numbers.next().and_then(|ids| ids.first().copied());
    Outcome::Looked { last, snapshots: numbers.next().unwrap_or_default() }.into()
}

fn wall_clock_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
