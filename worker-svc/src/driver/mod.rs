//! The driver: the one thread that runs the engine, and the lock through which everything else
//! reaches the scheduler.
//!
//! ```text
//! handlers --submit/cancel/landing/source--> [ Mutex<Core> ] <--plan/commit-- engine thread
//!          <------- events, one channel per request -----------/
//! ```
//!
//! The lock is held for bookkeeping only, never during a forward pass. Cancellation reaches a running
//! pass through a flag per request that the engine asks for between layers.
//!
//! Does not: know the wire, transfer KV, or decide what to compute (the scheduler does).

mod core;
mod event;
mod step;
mod ticket;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use armature_contracts::ids::{InstanceId, WorkerRank};
use tokio::sync::watch;

pub use self::core::{Core, Counters, Job};
pub use event::{Event, LayerReady};
pub use ticket::Ticket;

use crate::domain::ids::ReservationKey;
use crate::domain::kv_events::{KvBatch, KvEvents, KvSnapshot};
use crate::domain::kv_publisher::LogRange;
use crate::domain::report::{LoadReport, SettledCursor};
use crate::domain::request::Refusal;
use crate::domain::scheduler::{Scheduler, SchedulerConfig};
use crate::domain::time::Time;
use crate::kv_memory::KvMemory;
use crate::ports::{Backend, Engine, KvLog, ModelSpec};

/// Handle of a running engine. Dropping the last one does not stop the thread: [`Driver::stop`] does.
#[derive(Debug)]
pub struct Driver {
    core: Mutex<Core>,
    wake: Condvar,
    kv: Arc<KvMemory>,
    spec: ModelSpec,
    start: Instant,
    /// Overwrites blocks before they are first written, so that a read of what is not there shows.
    poison: bool,
    changed: watch::Sender<u64>,
    kv_batch: watch::Sender<u64>,
    failed: watch::Sender<Option<String>>,
    /// Changes under the lock only, so that what is read or submitted there belongs to one incarnation.
    instance: watch::Sender<InstanceId>,
}

impl Driver {
    /// Starts the engine thread, in its first incarnation.
    ///
    /// # Errors
    /// What the system says when it cannot start a thread.
    pub fn start(
        engine: Box<dyn Engine>,
        kv: Arc<KvMemory>,
        config: SchedulerConfig,
        poison: bool,
        instance: InstanceId,
    ) -> std::io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let driver = Arc::new(Self {
            core: Mutex::new(Core::new(Scheduler::new(config))),
            wake: Condvar::new(),
            kv,
            spec: engine.spec().clone(),
            start: Instant::now(),
            poison,
            changed: watch::Sender::new(0),
            kv_batch: watch::Sender::new(0),
            failed: watch::Sender::new(None),
            instance: watch::Sender::new(instance),
        });
        let body = Arc::clone(&driver);
        let thread = thread::Builder::new().name("engine".into()).spawn(move || step::run(&body, engine))?;
        Ok((driver, thread))
    }

    /// The model that the engine runs.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The pool's memory.
    pub fn kv(&self) -> &Arc<KvMemory> {
        &self.kv
    }

    /// Now, on the scheduler's clock.
    pub fn now(&self) -> Time {
        Time(self.start.elapsed())
    }

    /// The scheduler's time at a point of the process's clock.
    pub fn time_at(&self, at: Instant) -> Time {
        Time(at.saturating_duration_since(self.start))
    }

    /// Takes a request or refuses it, at once. Its events come through the ticket; dropping that cancels it.
    ///
    /// # Errors
    /// The scheduler's refusal, or that the job is for another incarnation; nothing is left behind then.
    pub fn submit(self: &Arc<Self>, job: Job) -> Result<Ticket, Refusal> {
        self.with(
            |core, now| if job.worker == self.rank() { core.submit(job, now) } else { Err(Refusal::Fenced) },
        )
        .map(|(id, events, live)| {
            let driver = Arc::clone(self);
            Ticket::new(id, events, move || {
                live.store(false, Ordering::Release);
                driver.with(|core, now| core.scheduler.cancel(id, now));
            })
        })
    }

    /// Runs `f` under the lock, hands out what it caused, and wakes the engine thread.
    pub fn with<R>(&self, f: impl FnOnce(&mut Core, Time) -> R) -> R {
        let mut core = self.lock();
        let now = self.now();
        let result = f(&mut core, now);
        self.dispatch(&mut core);
        self.wake.notify_one();
        result
    }

    /// A load report for a subscriber that holds `cursor`.
    pub fn report(&self, cursor: Option<SettledCursor>) -> LoadReport {
        let mut core = self.lock();
        let now = self.now();
        core.scheduler.report(cursor, now)
    }

    /// Reads the KV event log under the lock; batches that this cuts are announced to other readers.
    pub fn kv_events<R>(&self, f: impl FnOnce(&mut KvEvents, Time) -> R) -> R {
        let mut core = self.lock();
        let now = self.now();
        let result = f(core.scheduler.kv_events(), now);
        self.announce_batches(&mut core);
        result
    }

    /// Counters since the start of the process.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Changes whenever the load may have.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Number of the last KV event batch.
    pub fn kv_batch(&self) -> watch::Receiver<u64> {
        self.kv_batch.subscribe()
    }

    /// Why the engine thread has ended, once it has by a failure.
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    /// The one rank of this engine, in its present incarnation.
    pub fn rank(&self) -> WorkerRank {
        WorkerRank::first(*self.instance.borrow())
    }

    /// The id of the present incarnation.
    pub fn instance(&self) -> watch::Receiver<InstanceId> {
        self.instance.subscribe()
    }

    /// Resolves when `worker` is not the present incarnation.
    pub async fn fenced(&self, worker: WorkerRank) {
        // The sender is part of self, so the channel cannot close while this waits.
        let _ = self.instance().wait_for(|id| *id != worker.instance).await;
    }

    /// The present incarnation has been announced gone: the engine goes on as `instance`. Every unfinished choice ends with MIGRATE and
    /// every landing is aborted; the cache stays, and its events are told anew.
    pub fn begin_anew(&self, instance: InstanceId) {
        self.with(|core, now| {
            self.instance.send_replace(instance);
            core.scheduler.migrate_all(now);
            core.scheduler.kv_events().begin_anew(now);
        });
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.with(|core, now| core.scheduler.drain(now));
    }

    /// Ends these choices of the request of a reservation, if it runs.
    pub fn cancel_choices(&self, reservation: ReservationKey, choices: &[u32]) {
        self.with(|core, now| core.scheduler.cancel_choices(reservation, choices, now));
    }

    /// Ends every unfinished choice with MIGRATE.
    pub fn migrate_all(&self) {
        self.with(|core, now| core.scheduler.migrate_all(now));
    }

    /// Ends the engine thread after the pass it is in.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic under the lock is a broken invariant of the scheduler: nothing it says can be trusted.
        self.core.lock().expect("scheduler state is sound")
    }

    /// Hands the scheduler's effects to the requests they concern.
    fn dispatch(&self, core: &mut Core) {
        let poison = self.poison.then_some(&*self.kv);
        if core.dispatch(poison) {
            self.changed.send_modify(|version| *version += 1);
        }
        self.announce_batches(core);
    }

    fn announce_batches(&self, core: &mut Core) {
        let last = core.scheduler.kv_events().last_batch();
        self.kv_batch.send_if_modified(|known| std::mem::replace(known, last) != last);
    }
}

impl Driver {
    /// Reads the event log of `me`, under the lock; none when that is another incarnation.
    fn log_of<R>(&self, me: WorkerRank, f: impl FnOnce(&mut KvEvents, Time) -> R) -> Option<R> {
        self.kv_events(|events, now| (self.rank() == me).then(|| f(events, now)))
    }
}

impl Backend for Driver {
    fn instance(&self) -> watch::Receiver<InstanceId> {
        self.instance()
    }

    fn time_at(&self, at: Instant) -> Time {
        self.time_at(at)
    }

    fn submit(self: Arc<Self>, job: Job) -> Result<Ticket, Refusal> {
        Driver::submit(&self, job)
    }

    fn cancel_choices(&self, reservation: ReservationKey, choices: &[u32]) {
        self.cancel_choices(reservation, choices);
    }

    fn report(&self, cursor: Option<SettledCursor>) -> LoadReport {
        self.report(cursor)
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed()
    }

    fn with_kv_events(&self, f: &mut dyn FnMut(&mut KvEvents, Time)) {
        self.kv_events(f);
    }

    fn kv_batch(&self) -> watch::Receiver<u64> {
        self.kv_batch()
    }

    fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed()
    }

    fn begin_anew(&self, instance: InstanceId) {
        self.begin_anew(instance);
    }

    fn drain(&self) {
        self.drain();
    }

    fn migrate_all(&self) {
        self.migrate_all();
    }

    fn stop(&self) {
        self.stop();
    }
}

impl KvLog for Driver {
    fn rank(&self) -> WorkerRank {
        self.rank()
    }

    fn fenced(&self, me: WorkerRank) -> impl Future<Output = ()> + Send {
        self.fenced(me)
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
        self.kv_batch()
    }

    fn now(&self) -> Time {
        self.now()
    }
}
