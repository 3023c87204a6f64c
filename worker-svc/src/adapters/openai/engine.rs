//! The adapter as what computes tokens: its table of requests, and the tasks that follow them in the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use armature_contracts::ids::{InstanceId, WorkerRank};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::task::TaskTracker;

use super::client::EngineClient;
use super::metrics::EngineMetrics;
use super::run;
use crate::domain::ids::{RequestId, ReservationKey};
use crate::domain::kv_events::{KvBatch, KvEvents, KvEventsConfig, KvSnapshot};
use crate::domain::kv_publisher::LogRange;
use crate::domain::openai::ask::{self, Ask};
use crate::domain::openai::dialect::Abilities;
use crate::domain::openai::load::EngineLoad;
use crate::domain::openai::retokenize::Vocabulary;
use crate::domain::openai::table::{Limits, Table};
use crate::domain::report::{LoadReport, SettledCursor};
use crate::domain::request::{FinishReason, Refusal};
use crate::domain::time::Time;
use crate::driver::{Counters, Event, Job, Ticket};
use crate::ports::{Backend, KvLog};

/// What was found behind a URL.
pub struct Found {
    /// How it calls the model.
    pub model: String,
    /// Its kind, and what it does.
    pub abilities: Abilities,
    /// Name to serve the model under.
    pub served_name: String,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// One more than the largest token id.
    pub vocab_size: usize,
    /// Begin token, if the model has one.
    pub bos: Option<u32>,
    /// End tokens.
    pub eos: Vec<u32>,
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `{chat_template, bos_token, eos_token, add_bos}`.
    pub template: Vec<u8>,
    /// Text to tokens and back.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Sequences that it computes at once, where it says so.
    pub slots: Option<usize>,
    /// Tokens that its KV memory has room for, where it says so.
    pub kv_tokens: Option<u64>,
}

/// Stops a choice from outside; it ends with this reason.
pub(super) type Stop = watch::Sender<Option<FinishReason>>;

pub(super) struct Shared {
    pub(super) table: Table,
    /// Of each request in the engine, its choices.
    live: HashMap<RequestId, Vec<(u32, Stop)>>,
    kv: KvEvents,
    pub(super) counters: Counters,
}

/// An engine of somebody else. The lock is held for bookkeeping only.
pub struct OpenAiEngine {
    pub(super) client: EngineClient,
    pub(super) found: Found,
    pub(super) metrics: EngineMetrics,
    shared: Mutex<Shared>,
    pub(super) start: Instant,
    instance: watch::Sender<InstanceId>,
    changed: watch::Sender<u64>,
    kv_batch: watch::Sender<u64>,
    failed: watch::Sender<Option<String>>,
    /// Whether the engine answers.
    pub(super) up: watch::Sender<bool>,
    /// Somebody has a reason to doubt that.
    pub(super) doubt: Notify,
    tasks: TaskTracker,
}

impl std::fmt::Debug for OpenAiEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAiEngine").field("url", self.client.url()).finish_non_exhaustive()
    }
}

impl OpenAiEngine {
    /// The engine behind `client`, in its first incarnation; it has just answered.
    pub fn new(
        client: EngineClient,
        found: Found,
        limits: Limits,
        metrics: EngineMetrics,
        instance: InstanceId,
    ) -> Arc<Self> {
        metrics.up.set(1);
        Arc::new(Self {
            client,
            found,
            metrics,
            shared: Mutex::new(Shared {
                table: Table::new(limits),
                live: HashMap::new(),
                kv: KvEvents::new(KvEventsConfig::default()),
                counters: Counters::default(),
            }),
            start: Instant::now(),
            instance: watch::Sender::new(instance),
            changed: watch::Sender::new(0),
            kv_batch: watch::Sender::new(0),
            failed: watch::Sender::new(None),
            up: watch::Sender::new(true),
            doubt: Notify::new(),
            tasks: TaskTracker::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic under the lock is a broken invariant of the table: nothing it says can be trusted.
        self.shared.lock().expect("the table is sound")
    }

    pub(super) fn now(&self) -> Time {
        Time(self.start.elapsed())
    }

    /// Changes the table, and says that the load has changed.
    pub(super) fn change<R>(&self, f: impl FnOnce(&mut Shared, Time) -> R) -> R {
        let result = f(&mut self.lock(), self.now());
        self.changed.send_modify(|version| *version += 1);
        result
    }

    /// A request is over, and its choices with it.
    pub(super) fn ended(&self, id: RequestId) {
        self.change(|shared, now| {
            shared.live.remove(&id);
            shared.table.ended(id, now);
        });
    }

    /// The engine answers, or not. What it had is lost in the second case.
    pub(super) fn set_up(&self, up: bool) {
        let news = self.change(|shared, _| shared.table.set_away(!up));
        self.up.send_replace(up);
        self.metrics.up.set(i64::from(up));
        if news && !up {
            self.metrics.losses.inc();
        }
    }

    /// The engine's own numbers; cuts what is due of KV events besides, for nothing else does.
    pub(super) fn engine_says(&self, load: Option<EngineLoad>) {
        let (news, foreign) = {
            let mut shared = self.lock();
            (shared.table.engine_says(load), shared.table.requests().1)
        };
        self.metrics.foreign.set(foreign as i64);
        if news {
            self.changed.send_modify(|version| *version += 1);
        }
        self.with_kv_events(&mut |events, now| while events.poll(now).is_some() {});
    }

    fn stop_choices(&self, reason: FinishReason, concerns: impl Fn(RequestId, u32) -> bool) {
        let shared = self.lock();
        for (id, choices) in &shared.live {
            for (choice, stop) in choices.iter().filter(|(choice, _)| concerns(*id, *choice)) {
                tracing::debug!(choice, ?reason, "stopping a choice in the engine");
                // The first reason stays.
                stop.send_if_modified(|known| {
                    let first = known.is_none();
                    *known = known.or(Some(reason));
                    first
                });
            }
        }
    }

    fn check(&self, job: &Job) -> Result<(), Refusal> {
        let salt = run::cache_salt(&job.submission.root);
        let ask = Ask {
            model: &self.found.model,
            params: &job.params,
            ignore_eos: job.ignore_eos,
            max_tokens: 1,
            min_tokens: job.submission.stop.min_tokens,
            seed: job.seed,
            context: self.found.context_length,
            cache_salt: &salt,
        };
        Ok(ask::check(&ask, self.found.abilities)?)
    }
}

impl Backend for OpenAiEngine {
    fn instance(&self) -> watch::Receiver<InstanceId> {
        self.instance.subscribe()
    }

    fn time_at(&self, at: Instant) -> Time {
        Time(at.saturating_duration_since(self.start))
    }

    fn submit(self: Arc<Self>, job: Job) -> Result<Ticket, Refusal> {
        if let Err(refusal) = self.check(&job) {
            self.change(|shared, now| shared.table.refused(job.submission.reservation, now));
            return Err(refusal);
        }
        let (id, stopped) = self.change(|shared, now| {
            // Read under the lock that incarnations change under.
            if job.worker != WorkerRank::first(*self.instance.borrow()) {
                return Err(Refusal::Fenced);
            }
            let id = shared.table.submit(&job.submission, now)?;
            let stops = job.submission.choices.iter().map(|choice| (choice.index, Stop::new(None)));
            let stops: Vec<(u32, Stop)> = stops.collect();
            let stopped: Vec<_> = stops.iter().map(|(_, stop)| stop.subscribe()).collect();
            shared.live.insert(id, stops);
            Ok((id, stopped))
        })?;
        // Unbounded, but holds no more than the request's tokens: the context length bounds it for each choice.
        let (events, received) = mpsc::unbounded_channel::<Event>();
        self.tasks.spawn(run::request(Arc::clone(&self), id, job, stopped, events));
        let engine = Arc::downgrade(&self);
        Ok(Ticket::new(id, received, move || {
            if let Some(engine) = engine.upgrade() {
                engine.stop_choices(FinishReason::Cancelled, |request, _| request == id);
            }
        }))
    }

    fn cancel_choices(&self, reservation: ReservationKey, choices: &[u32]) {
        let found = self.lock().table.find(reservation);
        if let Some(id) = found {
            self.stop_choices(FinishReason::Cancelled, |request, choice| {
                request == id && choices.contains(&choice)
            });
        }
    }

    fn report(&self, cursor: Option<SettledCursor>) -> LoadReport {
        self.lock().table.report(cursor, self.now())
    }

    fn counters(&self) -> Counters {
        self.lock().counters
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn with_kv_events(&self, f: &mut dyn FnMut(&mut KvEvents, Time)) {
        let mut shared = self.lock();
        f(&mut shared.kv, self.now());
        let last = shared.kv.last_batch();
        self.kv_batch.send_if_modified(|known| std::mem::replace(known, last) != last);
    }

    fn kv_batch(&self) -> watch::Receiver<u64> {
        self.kv_batch.subscribe()
    }

    fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    fn begin_anew(&self, instance: InstanceId) {
        self.change(|shared, now| {
            self.instance.send_replace(instance);
            shared.kv.begin_anew(now);
        });
        self.migrate_all();
    }

    fn drain(&self) {
        self.change(|shared, _| shared.table.drain());
    }

    fn migrate_all(&self) {
        self.stop_choices(FinishReason::Migrate, |_, _| true);
    }

    fn stop(&self) {
        self.migrate_all();
        self.tasks.close();
    }
}

impl OpenAiEngine {
    fn log_of<R>(&self, me: WorkerRank, f: impl FnOnce(&mut KvEvents, Time) -> R) -> Option<R> {
        let mut f = Some(f);
        let mut result = None;
        self.with_kv_events(&mut |events, now| {
            if WorkerRank::first(*self.instance.borrow()) == me {
                result = f.take().map(|f| f(events, now));
            }
        });
        result
    }
}

impl KvLog for OpenAiEngine {
    fn rank(&self) -> WorkerRank {
        WorkerRank::first(*self.instance.borrow())
    }

    fn fenced(&self, me: WorkerRank) -> impl Future<Output = ()> + Send {
        crate::ports::fenced(self, me)
    }

    fn range(&self, me: WorkerRank) -> Option<LogRange> {
        self.log_of(me, |events, _| LogRange { first: events.first_batch(), last: events.last_batch() })
    }

    fn batch(&self, me: WorkerRank, number: u64) -> Option<Arc<KvBatch>> {
        self.log_of(me, |events, _| events.batch(number))?
    }

    fn snapshot(&self, me: WorkerRank) -> Option<KvSnapshot> {
        self.log_of(me, |events, now| {
            events.begin(now);
            events.snapshot(now).0
        })
    }

    fn announced(&self) -> watch::Receiver<u64> {
        self.kv_batch.subscribe()
    }

    fn now(&self) -> Time {
        self.now()
    }
}
