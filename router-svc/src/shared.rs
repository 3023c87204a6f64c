//! The state behind its lock, with the clock and the entropy that the domain takes as arguments, and the calls that wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use armature_contracts::ids::ReservationKey;
use armature_contracts::ids::{InstanceId, WorkerRank};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::adapters::record::writer::{Recorded, Recorder};
use crate::config::{Config, IndexKind, Valid};
use crate::domain::backlog::{Backlog, Claim, Ticket};
use crate::domain::dispatch::{Answer, Dispatch, Ended, NotHeld, Submitted};
use crate::domain::explain::KeptDecisions;
use crate::domain::index::approximate::Approximate;
use crate::domain::index::map::MapIndex;
use crate::domain::index::predicted::Predicted;
use crate::domain::index::segmented::SegmentedIndex;
use crate::domain::index::wire::CheckedIndex;
use crate::domain::load::Report;
use crate::domain::reservations::{Reservations, Settled};
use crate::domain::router::{Request, RouteError, Routed, Router};
use crate::domain::units::Time;
use crate::domain::worker::Worker;
use crate::metrics::{Metrics, ReasonLabel};
use crate::ports::PrefixIndex;

/// What the parts of a running router share.
pub struct Shared {
    /// Instruments.
    pub metrics: Metrics,
    state: Mutex<State>,
    start: Instant,
    /// This router's incarnation; another one after discovery has fenced it.
    instance: AtomicU64,
    complete: AtomicBool,
    progress: Notify,
    recorder: Option<Recorder>,
}

struct State {
    dispatch: Dispatch,
    seeds: StdRng,
    /// Of the calls whose tickets are in the backlog, and bounded with it.
    waiting: HashMap<Ticket, oneshot::Sender<Answer>>,
}

impl Shared {
    /// An empty state; `recorder` gets every decision. `entropy` seeds the index's hasher and the tie-breaks.
    pub fn new(
        config: &Config,
        valid: Valid,
        instance: InstanceId,
        entropy: u64,
        metrics: Metrics,
        recorder: Option<Recorder>,
    ) -> Arc<Self> {
        let mut seeds = StdRng::seed_from_u64(entropy);
        let index: Box<dyn PrefixIndex> = match config.index.kind {
            IndexKind::Segmented => {
                let keys = std::array::from_fn(|_| seeds.next_u64());
                Box::new(SegmentedIndex::new(config.index.max_bytes, keys))
            }
            IndexKind::Map => Box::new(MapIndex::new(config.index.max_entries, seeds.next_u64())),
        };
        let lifetime = std::time::Duration::from_millis(config.index.predicted_ms);
        let predicted = Predicted::new(config.index.predicted_entries, lifetime, seeds.next_u64());
        let reservations = Reservations::new(valid.reservations);
        let kept = KeptDecisions::new(config.explain.max_bytes);
        let lifetime = std::time::Duration::from_millis(config.index.approximate_ttl_ms);
        let approximate = Approximate::new(config.index.approximate_entries, lifetime, seeds.next_u64());
        let router = Router::new(valid.settings, CheckedIndex::new(index), predicted, reservations, kept)
            .approximating(approximate)
            .placed_by(config.topology.keys.clone().into())
            .with_depth(valid.depth);
        let dispatch = Dispatch::new(router, Backlog::new(valid.backlog));
        Arc::new(Self {
            metrics,
            state: Mutex::new(State { dispatch, seeds, waiting: HashMap::new() }),
            start: Instant::now(),
            instance: AtomicU64::new(instance.0),
            complete: AtomicBool::new(false),
            progress: Notify::new(),
            recorder,
        })
    }

    /// This router's incarnation.
    pub fn instance(&self) -> InstanceId {
        InstanceId(self.instance.load(Ordering::Relaxed))
    }

    /// Goes on as another incarnation.
    pub fn renamed(&self, instance: InstanceId) {
        self.instance.store(instance.0, Ordering::Relaxed);
    }

    /// Takes a report, and wakes who waits for the first ones, or for room.
    pub fn report(&self, instance: InstanceId, ranks: Vec<(WorkerRank, Report)>, settled: &[Settled]) {
        self.step(|dispatch, seeds, now| {
            dispatch.router_mut().report(instance, ranks, settled, now);
            dispatch.reported(instance, seeds, now)
        });
        self.progress.notify_waiters();
    }

    /// Takes the present membership, and wakes who waits for room.
    pub fn members(&self, workers: Vec<Worker>) {
        self.step(|dispatch, seeds, now| {
            dispatch.router_mut().members(workers, now);
            dispatch.wake(seeds, now)
        });
    }

    /// Ends reservations, known or not, and calls that wait for theirs.
    pub fn release(&self, keys: &[ReservationKey]) {
        self.step(|dispatch, seeds, now| dispatch.release(keys, seeds, now));
    }

    /// From now on nothing waits, and what does is told to go elsewhere.
    pub fn refuse_waiting(&self) {
        self.step(|dispatch, _, now| dispatch.close(now));
    }

    /// Says whether every worker in discovery's view is known with its card.
    pub fn membership_complete(&self, complete: bool) {
        self.complete.store(complete, Ordering::Release);
        self.progress.notify_waiters();
    }

    /// Waits until every worker of a complete view has reported.
    pub async fn all_reported(&self) {
        loop {
            let mut progress = std::pin::pin!(self.progress.notified());
            progress.as_mut().enable();
            if self.complete.load(Ordering::Acquire) && self.with(|router| router.all_reported()) {
                return;
            }
            progress.await;
        }
    }

    /// The present, in the domain's time.
    pub fn now(&self) -> Time {
        Time(self.start.elapsed())
    }

    /// Reads or changes the router's state, where that makes no room.
    pub fn with<R>(&self, step: impl FnOnce(&mut Router) -> R) -> R {
        step(self.lock().dispatch.router_mut())
    }

    /// Decides with a fresh seed; waits for room as long as `claim` allows. Dropping the future takes the call out of the backlog. Answers
    /// whether it has waited, too.
    pub async fn route(&self, request: &Request, claim: &Claim) -> (Answer, bool) {
        let mut call = match self.submit(request, claim) {
            Ok(waiting) => waiting,
            Err(answer) => return (answer, false),
        };
        loop {
            tokio::select! {
                answer = &mut call.answer => {
                    // A sender is only dropped with the state.
                    return (answer.unwrap_or(Err(NotHeld::Draining.into())), true);
                }
                () = sleep_until(call.until) => self.step(|dispatch, _, now| dispatch.expire(now)),
            }
        }
    }

    fn submit(&self, request: &Request, claim: &Claim) -> Result<Waiting<'_>, Answer> {
        let now = self.now();
        let mut state = self.lock();
        let before = state.dispatch.router().decisions();
        let State { dispatch, seeds, waiting } = &mut *state;
        let (submitted, ended) = dispatch.submit(request, claim, &mut || seeds.next_u64(), now);
        let answered = match &submitted {
            Submitted::Answered(answer) => Some(answer),
            Submitted::Waits(_) => None,
        };
        let decided =
            self.decided(dispatch, before, answered.into_iter().chain(ended.iter().map(|it| &it.answer)));
        let outcome = match submitted {
            Submitted::Answered(answer) => Err(answer),
            Submitted::Waits(ticket) => {
                let (answer, receiver) = oneshot::channel();
                waiting.insert(ticket, answer);
                let until = self.start + dispatch.until(ticket).unwrap_or(now).0;
                Ok(Waiting { shared: self, ticket, until, answer: receiver })
            }
        };
        self.tell(waiting, ended);
        if let Err(answer) = &outcome {
            self.count_refusal(answer);
        }
        self.metrics.backlog.show(dispatch.waiting());
        drop(state);
        self.record(decided);
        outcome
    }

    /// Lets time pass and shows the gauges.
    pub fn tick(&self) {
        let mut unnamed = 0;
        self.step(|dispatch, seeds, now| {
            dispatch.router_mut().tidy();
            unnamed = dispatch.router_mut().expire(now);
            let mut ended = dispatch.expire(now);
            ended.extend(dispatch.wake(seeds, now));
            ended
        });
        let totals = self.with(|router| router.totals());
        self.metrics.unnamed.inc_by(unnamed as u64);
        self.metrics.show(totals);
    }

    /// Changes the state and tells the calls whose wait it ended.
    fn step(&self, step: impl FnOnce(&mut Dispatch, &mut dyn FnMut() -> u64, Time) -> Vec<Ended>) {
        let now = self.now();
        let mut state = self.lock();
        let State { dispatch, seeds, waiting } = &mut *state;
        let before = dispatch.router().decisions();
        let ended = step(dispatch, &mut || seeds.next_u64(), now);
        let decided = self.decided(dispatch, before, ended.iter().map(|it| &it.answer));
        self.tell(waiting, ended);
        self.metrics.backlog.show(dispatch.waiting());
        drop(state);
        self.record(decided);
    }

    /// What the recorder gets: these answers, as far as they are newer than `before` decisions.
    fn decided<'a>(
        &self,
        dispatch: &Dispatch,
        before: u64,
        answers: impl Iterator<Item = &'a Answer>,
    ) -> Vec<Recorded> {
        if self.recorder.is_none() {
            return Vec::new();
        }
        let recorded = |routed: &Arc<Routed>| {
            let inputs = dispatch.router().inputs(routed.number)?.clone();
            Some(Recorded { number: routed.number, inputs, outcome: routed.outcome() })
        };
        let answers = answers.filter_map(|answer| answer.as_ref().ok());
        let new = answers.filter(|routed| routed.number.0 > before);
        let mut decided: Vec<_> = new.filter_map(recorded).collect();
        decided.sort_unstable_by_key(|it| it.number);
        decided
    }

    fn record(&self, decided: Vec<Recorded>) {
        if let Some(recorder) = &self.recorder {
            decided.into_iter().for_each(|it| recorder.record(it));
        }
    }

    fn tell(&self, waiting: &mut HashMap<Ticket, oneshot::Sender<Answer>>, ended: Vec<Ended>) {
        for Ended { tickets, waited, answer } in ended {
            self.metrics.backlog.waited.observe(waited.as_secs_f64());
            self.count_refusal(&answer);
            for sender in tickets.iter().filter_map(|ticket| waiting.remove(ticket)) {
                // Whoever has gone meanwhile releases what was booked.
                let _ = sender.send(answer.clone());
            }
        }
    }

    fn count_refusal(&self, answer: &Answer) {
        if let Err(RouteError::NotHeld(refused)) = answer {
            let reason = refused.name();
            self.metrics.backlog.refusals.get_or_create(&ReasonLabel { reason }).inc();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the domain is a bug; the state is still the best there is, and reports and snapshots correct it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits; dropping it takes it out.
struct Waiting<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    until: Instant,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        // Gone from the map: it was told.
        if state.waiting.remove(&self.ticket).is_none() {
            return;
        }
        if state.dispatch.cancel(self.ticket, now) {
            self.shared.metrics.backlog.cancelled.inc();
        }
        self.shared.metrics.backlog.show(state.dispatch.waiting());
    }
}
