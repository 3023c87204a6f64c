//! The loop: what is due happens, and whoever it concerned goes on.
//!
//! At each point in time first what was planned, then what arrives; then every worker that is idle and has something to compute begins a
//! pass, and every worker whose load has changed reports, as WatchState would. KV events leave a worker at the end of its pass.

mod effects;
mod handoff;
mod loss;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use armature_kv_hash::RootKey;
use armature_router::domain::units::SequenceHash;
use armature_worker::domain::request::{CacheRoot, RequestKind, Submission};
use armature_worker::domain::time::Time;

use crate::ceiling::Ceiling;
use crate::events::{Event, Events};
use crate::flight::{Flight, Handoff, cache_root, root_key};
use crate::measure::{Measure, Outcome, WorkerDone};
use crate::request::SimRequest;
use crate::router_side::{NoRoute, Role, RouterSide};
use crate::settings::{InvalidSettings, Pools, Settings};
use crate::trace::TraceError;
use crate::worker::SimWorker;
use crate::workload::InvalidWorkload;

/// How often the router's index does what it has put off: as the service does.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// How often a worker reports while nothing changes, as WatchState does.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Arrivals and pass ends between two calls of `progress`.
const PROGRESS_EVERY: u64 = 2048;

/// Why a simulation ended early.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The workload could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It cannot be simulated so.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    /// It cannot be made up so.
    #[error(transparent)]
    Workload(#[from] InvalidWorkload),
    /// Nothing will happen any more, and requests have not ended.
    #[error("{requests} requests wait for ever at {at:?}: a bug of the scheduler or of this simulator")]
    Stuck {
        /// How many.
        requests: usize,
        /// When.
        at: Duration,
    },
}

/// How far a simulation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now: Duration,
    /// Requests that have arrived.
    pub arrived: u64,
    /// Requests that have ended.
    pub ended: u64,
}

/// A fleet in virtual time.
pub struct Simulation {
    settings: Settings,
    workers: Vec<SimWorker>,
    router: RouterSide,
    events: Events,
    flights: BTreeMap<u64, Flight>,
    root: Arc<CacheRoot>,
    root_key: RootKey,
    ceiling: Ceiling,
    measure: Measure,
    now: Duration,
    arrived: u64,
    /// Transfers begun; names the next one.
    transfers: u64,
    /// Workers whose effects are to be looked at.
    touched: BTreeSet<usize>,
}

impl Simulation {
    /// An idle fleet.
    ///
    /// # Errors
    /// A setting that cannot be simulated.
    pub fn new(settings: Settings) -> Result<Self, InvalidSettings> {
        settings.validate()?;
        let roles: Vec<Role> = match settings.pools {
            Pools::Aggregated(workers) => vec![Role::Aggregated; workers],
            Pools::Disaggregated { prefill, decode } => {
                [vec![Role::Prefill; prefill], vec![Role::Decode; decode]].concat()
            }
        };
        let root = cache_root();
        let mut events = Events::default();
        for kill in &settings.kills {
            events.plan(kill.at, Event::Kill { worker: kill.worker });
        }
        Ok(Self {
            router: RouterSide::new(&settings, &roles)?,
            workers: roles.iter().map(|role| SimWorker::new(*role, &settings)).collect(),
            events,
            flights: BTreeMap::new(),
            root_key: root_key(&root),
            root: Arc::new(root),
            ceiling: Ceiling::default(),
            measure: Measure::new(settings.slo),
            now: Duration::ZERO,
            arrived: 0,
            transfers: 0,
            touched: BTreeSet::new(),
            settings,
        })
    }

    /// Runs `requests`, in the order of their arrival, to their end.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn run(
        &mut self,
        requests: impl IntoIterator<Item = Result<SimRequest, TraceError>>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Outcome, SimError> {
        let mut requests = requests.into_iter();
        let mut next = requests.next().transpose()?;
        // Everybody says once that it is there.
        (0..self.workers.len()).for_each(|worker| self.heartbeat(worker));
        self.events.plan(TIDY_EVERY, Event::Tidy);
        let mut handled = 0;
        while next.is_some() || !self.flights.is_empty() {
            let arrives = next.as_ref().map(|request| request.at);
            let Some(at) = self.events.next_at().into_iter().chain(arrives).min() else { break };
            self.now = self.now.max(at);
            while let Some(event) = self.events.pop(self.now) {
                self.happen(event)?;
                handled += 1;
            }
            while let Some(request) = next.take_if(|request| request.at <= self.now) {
                self.arrive(&request);
                handled += 1;
                next = requests.next().transpose()?;
            }
            self.settle();
            if handled >= PROGRESS_EVERY {
                handled = 0;
                progress(self.progress());
            }
        }
        progress(self.progress());
        Ok(self.outcome())
    }

    fn progress(&self) -> Progress {
        Progress { now: self.now, arrived: self.arrived, ended: self.arrived - self.flights.len() as u64 }
    }

    fn outcome(&self) -> Outcome {
        let done = self.workers.iter().map(|worker| WorkerDone {
            prefill_tokens: worker.done.prefill_tokens,
            decode_tokens: worker.done.decode_tokens,
            passes: worker.done.passes,
            busy: worker.done.busy,
            prefills: worker.role != Role::Decode,
        });
        self.measure.outcome(done.collect(), self.now)
    }

    /// Verifies that nothing is left: no request, no held block, no broken promise.
    ///
    /// # Errors
    /// The first thing that is.
    pub fn audit(&self) -> Result<(), String> {
        for (number, worker) in self.workers.iter().enumerate().filter(|(_, worker)| worker.alive) {
            worker.scheduler.check().map_err(|problem| format!("worker {number}: {problem}"))?;
            let (active, flights) = (worker.scheduler.blocks_active(), worker.flights.len());
            if !worker.scheduler.is_idle() || active > 0 || flights > 0 {
                return Err(format!("worker {number} holds {active} blocks of {flights} requests"));
            }
        }
        if self.flights.is_empty() { Ok(()) } else { Err(format!("{} requests", self.flights.len())) }
    }

    fn happen(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::PassEnds { worker } => self.pass_ends(worker),
            Event::Report { worker } => self.report(worker),
            Event::Heartbeat { worker } => self.heartbeat(worker),
            Event::Batch { worker, batch } => {
                if self.workers[worker].alive {
                    self.router.kv_batch(worker, &batch);
                }
            }
            Event::Landed { flight, transfer } => self.landed(flight, transfer),
            Event::Retry { flight } => self.dispatch(flight),
            Event::Kill { worker } => self.kill(worker),
            Event::Tidy => {
                self.router.tidy();
                if self.events.is_only_upkeep() && self.nobody_computes() && !self.flights.is_empty() {
                    return Err(SimError::Stuck { requests: self.flights.len(), at: self.now });
                }
                self.events.plan(self.now + TIDY_EVERY, Event::Tidy);
            }
        }
        Ok(())
    }

    fn nobody_computes(&self) -> bool {
        self.workers.iter().all(|worker| !worker.alive || worker.is_idle())
    }

    fn arrive(&mut self, request: &SimRequest) {
        self.arrived += 1;
        let number = self.arrived;
        let flight = Flight::new(request, self.now);
        let hashes = flight.hashes(self.root_key, self.settings.machine.timing.block_size);
        let reusable = (flight.prompt.len() - 1) / self.settings.machine.timing.block_size;
        let seen = self.ceiling.visit(&hashes, reusable) * self.settings.machine.timing.block_size;
        self.measure.arrived(self.now, flight.prompt.len() as u64, seen as u64);
        self.flights.insert(number, flight);
        self.route(number, hashes);
    }

    /// Finds a worker for a flight that has none.
    fn dispatch(&mut self, number: u64) {
        let Some(flight) = self.flights.get(&number) else { return };
        let hashes = flight.hashes(self.root_key, self.settings.machine.timing.block_size);
        self.route(number, hashes);
    }

    fn route(&mut self, number: u64, hashes: Arc<[SequenceHash]>) {
        let Some(flight) = self.flights.get_mut(&number) else { return };
        flight.attempt += 1;
        match self.router.route(flight.key(number), flight.len(), hashes, flight.lost, self.now) {
            Ok(destination) if destination.prefill.is_empty() => {
                let submission = flight.submission(number, RequestKind::Local, &self.root);
                self.submit(destination.leader, number, submission);
            }
            Ok(destination) => {
                flight.handoff = Some(Handoff::expected(&destination));
                let submission = flight.submission(number, RequestKind::Landing, &self.root);
                self.submit(destination.leader, number, submission);
            }
            Err(NoRoute::Later(after)) => self.events.plan(self.now + after, Event::Retry { flight: number }),
            Err(NoRoute::Never) => self.refuse(number),
        }
    }

    fn submit(&mut self, worker: usize, number: u64, submission: Submission) {
        let side = &mut self.workers[worker];
        match side.scheduler.submit(submission, Time(self.now)) {
            Ok(id) => {
                side.flights.insert(id, number);
                if let Some(flight) = self.flights.get_mut(&number) {
                    flight.leader = Some((worker, id));
                }
                self.touched.insert(worker);
            }
            Err(_) => self.refuse(number),
        }
    }

    /// The request gets no answer.
    fn refuse(&mut self, number: u64) {
        if let Some(flight) = self.flights.remove(&number) {
            self.router.release(flight.key(number), self.now);
            self.measure.refused();
        }
    }

    fn pass_ends(&mut self, worker: usize) {
        let Self { workers, flights, now, .. } = self;
        if !workers[worker].alive {
            return;
        }
        let token = |flight: u64, position| {
            flights.get(&flight).map_or(0, |flight: &Flight| flight.answer.token(position))
        };
        workers[worker].end_pass(*now, token);
        self.touched.insert(worker);
    }

    /// Everybody whom this point in time concerned goes on.
    fn settle(&mut self) {
        let mut waiting = BTreeSet::new();
        let mut changed = BTreeSet::new();
        loop {
            while let Some(worker) = self.touched.pop_first() {
                self.take_effects(worker);
                waiting.insert(worker);
                changed.insert(worker);
            }
            let Some(worker) = waiting.pop_first() else { break };
            self.go_on(worker);
        }
        for worker in changed {
            if let Some(at) = self.workers[worker].wants_report(self.now) {
                if at <= self.now {
                    self.report(worker);
                } else {
                    self.events.plan(at, Event::Report { worker });
                }
            }
        }
    }

    /// An idle worker tells what its cache holds, and begins a pass.
    fn go_on(&mut self, worker: usize) {
        let side = &mut self.workers[worker];
        if !side.alive || !side.is_idle() {
            return;
        }
        while let Some(batch) = side.next_batch(self.now) {
            if self.settings.event_delay.is_zero() {
                self.router.kv_batch(worker, &batch);
            } else {
                self.events.plan(self.now + self.settings.event_delay, Event::Batch { worker, batch });
            }
        }
        if let Some(end) = side.begin_pass(&self.settings.machine, self.now) {
            self.events.plan(end, Event::PassEnds { worker });
        }
        // Planning admits, and may end what cannot go on.
        if self.take_effects(worker) {
            self.touched.insert(worker);
        }
    }

    /// A worker in which nothing changes reports as well, once a second.
    fn heartbeat(&mut self, worker: usize) {
        let side = &self.workers[worker];
        if side.alive {
            if side.last_report.is_none_or(|last| last + HEARTBEAT <= self.now) {
                self.report(worker);
            }
            let last = self.workers[worker].last_report.unwrap_or(self.now);
            self.events.plan(last + HEARTBEAT, Event::Heartbeat { worker });
        }
    }

    fn report(&mut self, worker: usize) {
        let side = &mut self.workers[worker];
        if side.alive {
            let (report, kv_batch) = side.report(self.settings.report_interval, self.now);
            let steps = self.workers[worker].done.passes;
            self.router.report(worker, &report, kv_batch, steps, self.now);
        }
    }
}
