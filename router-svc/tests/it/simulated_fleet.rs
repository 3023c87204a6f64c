//! The router's domain and workers in virtual time: what is sent arrives later, reports come later still, and all of it is the same for the same seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_router::domain::backlog::{Backlog, Bounds, Claim, Ticket};
use armature_router::domain::dispatch::{Answer, Dispatch, Ended, Submitted};
use armature_router::domain::explain::KeptDecisions;
use armature_router::domain::fit::StepFit;
use armature_router::domain::index::map::MapIndex;
use armature_router::domain::index::predicted::Predicted;
use armature_router::domain::index::wire::CheckedIndex;
use armature_router::domain::load::Report;
use armature_router::domain::policy::{Constraints, Question, Settings};
use armature_router::domain::reservations::{self, Reservations, Settled, Settlement};
use armature_router::domain::router::{Request, Router};
use armature_router::domain::step_cost::StepPrior;
use armature_router::domain::units::{BlockSize, Blocks, Millis, SequenceHash, Time, Tokens};
use armature_router::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One way between two processes.
pub const LATENCY: Duration = Duration::from_millis(3);
/// Least time between two reports of a worker.
const REPORTS: Duration = Duration::from_millis(20);
/// A worker that has nothing to say reports all the same.
const HEARTBEAT: Duration = Duration::from_millis(900);
/// Time of a worker's step: what has come begins at its end.
const STEP: Duration = Duration::from_millis(10);

pub fn key(n: u64) -> ReservationKey {
    ReservationKey { id: u128::from(n), attempt: 1 }
}

pub fn rank(n: u64) -> WorkerRank {
    WorkerRank::first(InstanceId(n))
}

fn set() -> ServedSet {
    let digest = |n| Digest(Arc::new([n; 32]));
    ServedSet { model: digest(1), tokenizer: digest(2), template: digest(3) }
}

/// One millisecond per uncached token.
pub fn worker(n: u64, limits: Limits) -> Worker {
    Worker {
        rank: rank(n),
        address: "mem:worker".into(),
        status: Status::Ready,
        namespace: "default".into(),
        served_name: "model".into(),
        set: set(),
        roles: Roles { aggregated: true, ..Roles::default() },
        engine: "sim".into(),
        labels: Arc::default(),
        context_length: Tokens(1 << 20),
        block_size: BlockSize(16),
        kv_blocks: Blocks(1 << 20),
        compat_key: Digest::default(),
        spec_hash: "".into(),
        capabilities: Arc::default(),
        hash_scheme: "armature-xxh3-v1".into(),
        limits,
        weight: 1.0,
        prior: StepPrior {
            prefill: [0.0, 1.0, 0.0],
            decode: [0.0, 0.0, 1.0],
            transfer_per_token: Millis(0.01),
        },
        fit: StepFit::default(),
    }
}

/// A question for `prompt` tokens, none of which anybody has.
pub fn question(prompt: u64, output: u64) -> Question {
    Question {
        namespace: "default".into(),
        set: set(),
        prompt: Tokens(prompt),
        hashes: Some(("armature-xxh3-v1".into(), BlockSize(16))),
        choices: 1,
        migrated: false,
        expected_output: Some(Tokens(output)),
        constraints: Constraints::default(),
    }
}

pub fn request(n: u64, question: Question) -> Request {
    let blocks = question.prompt.0 / 16;
    let prompt = (0..blocks).map(|block| SequenceHash((n << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    Request { key: key(n), question: Arc::new(question), prompt: prompt.collect() }
}

pub fn router(settings: Settings) -> Router {
    let bounds = reservations::Bounds {
        admission: Duration::from_secs(10),
        remember: Duration::from_secs(30),
        max_open: 65_536,
        max_ended: 65_536,
    };
    Router::new(
        settings,
        CheckedIndex::new(Box::new(MapIndex::new(1 << 20, 7))),
        Predicted::new(1 << 16, Duration::from_secs(30), 9),
        Reservations::new(bounds),
        KeptDecisions::new(1 << 20),
    )
}

pub fn dispatch(depth: Option<Millis>, bounds: Bounds) -> Dispatch {
    Dispatch::new(router(Settings::default()).with_depth(depth), Backlog::new(bounds))
}

pub const BOUNDS: Bounds =
    Bounds { max_requests: 4096, max_bytes: 1 << 26, aging: Duration::from_secs(5), fair: true };

/// What happens at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A call of Route.
    Call(u64),
    /// A caller goes away.
    Leave(u64),
    /// Generate reaches its worker.
    Deliver(u64, u64),
    /// A worker's step ends.
    Step(u64),
    /// A request is done.
    Done(u64, u64),
    /// A worker looks at itself, and says what it sees.
    Look(u64),
    /// A report arrives.
    Report(u64),
    /// Time passes at the router.
    Tick,
}

/// A request of the simulation.
#[derive(Debug, Clone)]
pub struct Asked {
    pub request: Request,
    pub tenant: u64,
    pub priority: i32,
    pub wait: Duration,
    /// Time that a worker needs for it.
    pub service: Duration,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Served { worker: u64, waited: Duration },
    Refused(String),
    Left,
}

#[derive(Debug, Default)]
struct SimWorker {
    limits: Limits,
    running: Vec<u64>,
    waiting: VecDeque<u64>,
    settled: Vec<Settled>,
    last_look: Option<Time>,
    looks: bool,
    steps: bool,
    /// On their way to the router.
    reports: VecDeque<(Report, Vec<Settled>)>,
}

/// The simulation.
pub struct Fleet {
    pub dispatch: Dispatch,
    pub now: Time,
    /// Requests that a worker has refused.
    pub refused_by_workers: usize,
    pub fates: BTreeMap<u64, Fate>,
    /// In order of their decisions.
    pub served: Vec<u64>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    numbers: u64,
    workers: BTreeMap<u64, SimWorker>,
    asked: HashMap<u64, Asked>,
    tickets: HashMap<Ticket, u64>,
    called: HashMap<u64, Time>,
    /// Requests that have a worker and are not there yet.
    on_their_way: usize,
    seeds: StdRng,
}

impl Fleet {
    pub fn new(dispatch: Dispatch, limits: &[Limits], seed: u64) -> Self {
        let mut fleet = Self {
            dispatch,
            now: Time::default(),
            refused_by_workers: 0,
            fates: BTreeMap::new(),
            served: Vec::new(),
            events: BinaryHeap::new(),
            numbers: 0,
            workers: BTreeMap::new(),
            asked: HashMap::new(),
            tickets: HashMap::new(),
            called: HashMap::new(),
            on_their_way: 0,
            seeds: StdRng::seed_from_u64(seed),
        };
        let members = limits.iter().zip(1..).map(|(limits, n)| worker(n, *limits)).collect();
        fleet.dispatch.router_mut().members(members, fleet.now);
        for (limits, n) in limits.iter().zip(1..) {
            fleet.workers.insert(n, SimWorker { limits: *limits, ..SimWorker::default() });
            fleet.look(n);
        }
        fleet.at(Duration::ZERO, Event::Tick);
        fleet
    }

    /// A request that comes `after` now.
    pub fn ask(&mut self, after: Duration, asked: Asked) {
        let n = asked.request.key.id as u64;
        assert!(self.asked.insert(n, asked).is_none());
        self.at(after, Event::Call(n));
    }

    /// Its caller goes away `after` now, unless it has its answer.
    pub fn leave(&mut self, after: Duration, n: u64) {
        self.at(after, Event::Leave(n));
    }

    /// Runs until everybody who has asked has an answer and every worker is at rest, or `limit` is over.
    pub fn run(&mut self, limit: Duration) {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            assert!(
                time.0 <= limit,
                "not at rest after {limit:?}: {} of {}",
                self.fates.len(),
                self.asked.len()
            );
            self.now = time;
            self.happen(event);
            self.check();
            let all_answered = self.fates.len() == self.asked.len() && self.on_their_way == 0;
            if all_answered && self.workers.values().all(SimWorker::rests) {
                return;
            }
        }
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((self.now.after(after), self.numbers, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Call(n) => {
                let asked = self.asked[&n].clone();
                let until = self.now.after(asked.wait);
                let claim =
                    Claim { tenant: asked.tenant.to_string().into(), priority: asked.priority, until };
                self.called.insert(n, self.now);
                let Self { dispatch, seeds, .. } = self;
                let (submitted, ended) =
                    dispatch.submit(&asked.request, &claim, &mut || seeds.next_u64(), self.now);
                match submitted {
                    Submitted::Answered(answer) => self.answered(n, &answer),
                    Submitted::Waits(ticket) => {
                        assert!(asked.wait > Duration::ZERO, "it may not wait");
                        assert!(self.tickets.insert(ticket, n).is_none());
                    }
                }
                self.ended(ended);
            }
            Event::Leave(n) => {
                let ticket = self.tickets.iter().find(|(_, other)| **other == n).map(|(ticket, _)| *ticket);
                if let Some(ticket) = ticket {
                    assert!(self.dispatch.cancel(ticket, self.now));
                    self.tickets.remove(&ticket);
                    self.fates.insert(n, Fate::Left);
                }
            }
            Event::Deliver(w, n) => {
                self.on_their_way -= 1;
                let worker = self.workers.get_mut(&w).unwrap();
                let full = worker.waiting.len() >= worker.limits.max_waiting as usize;
                let settlement = if full { Settlement::Refused } else { Settlement::Admitted };
                worker.settled.push(Settled { key: key(n), settlement, prefill_worker: None });
                self.refused_by_workers += usize::from(full);
                if !full {
                    worker.waiting.push_back(n);
                    self.step(w);
                }
                self.look(w);
            }
            Event::Step(w) => {
                let worker = self.workers.get_mut(&w).unwrap();
                worker.steps = false;
                while worker.running.len() < worker.limits.max_running as usize
                    && let Some(n) = worker.waiting.pop_front()
                {
                    worker.running.push(n);
                    let service = self.asked[&n].service;
                    self.numbers += 1;
                    self.events.push(Reverse((self.now.after(service), self.numbers, Event::Done(w, n))));
                }
                self.look(w);
            }
            Event::Done(w, n) => {
                let worker = self.workers.get_mut(&w).unwrap();
                worker.running.retain(|other| *other != n);
                worker.settled.push(Settled {
                    key: key(n),
                    settlement: Settlement::Finished,
                    prefill_worker: None,
                });
                self.step(w);
                self.look(w);
            }
            Event::Look(w) => {
                let asked = &self.asked;
                let worker = self.workers.get_mut(&w).unwrap();
                worker.looks = false;
                worker.last_look = Some(self.now);
                let uncomputed = worker.waiting.iter().map(|n| asked[n].request.question.prompt.0).sum();
                let report = Report {
                    running: worker.running.len() as u32,
                    waiting: worker.waiting.len() as u32,
                    uncomputed: Tokens(uncomputed),
                    free: Blocks(1 << 19),
                    ..Report::default()
                };
                let settled = std::mem::take(&mut worker.settled);
                worker.reports.push_back((report, settled));
                self.at(LATENCY, Event::Report(w));
            }
            Event::Report(w) => {
                let (report, settled) = self.workers.get_mut(&w).unwrap().reports.pop_front().unwrap();
                let report = Report { received: self.now, ..report };
                let Self { dispatch, seeds, now, .. } = self;
                dispatch.router_mut().report(InstanceId(w), vec![(rank(w), report)], &settled, *now);
                let ended = dispatch.reported(InstanceId(w), &mut || seeds.next_u64(), *now);
                self.ended(ended);
            }
            Event::Tick => {
                let Self { dispatch, seeds, now, .. } = self;
                let mut ended = dispatch.expire(*now);
                ended.extend(dispatch.wake(&mut || seeds.next_u64(), *now));
                self.ended(ended);
                let silent = self
                    .workers
                    .iter()
                    .filter(|(_, it)| it.last_look.is_none_or(|at| self.now.since(at) >= HEARTBEAT));
                for w in silent.map(|(w, _)| *w).collect::<Vec<_>>() {
                    self.look(w);
                }
                self.at(Duration::from_millis(50), Event::Tick);
            }
        }
    }

    fn step(&mut self, w: u64) {
        let worker = self.workers.get_mut(&w).unwrap();
        if !std::mem::replace(&mut worker.steps, true) {
            self.at(STEP, Event::Step(w));
        }
    }

    fn look(&mut self, w: u64) {
        let worker = self.workers.get_mut(&w).unwrap();
        if !std::mem::replace(&mut worker.looks, true) {
            let since = worker.last_look.map_or(REPORTS, |last| self.now.since(last));
            self.at(REPORTS.saturating_sub(since), Event::Look(w));
        }
    }

    fn ended(&mut self, ended: Vec<Ended>) {
        for Ended { tickets, answer, .. } in ended {
            assert_eq!(tickets.len(), 1);
            let n = self.tickets.remove(&tickets[0]).expect("it waits");
            self.answered(n, &answer);
        }
    }

    fn answered(&mut self, n: u64, answer: &Answer) {
        let waited = self.now.since(self.called[&n]);
        assert!(waited <= self.asked[&n].wait + Duration::from_millis(50), "{n} waited {waited:?}");
        let fate = match answer {
            Ok(routed) => {
                let worker = routed.decode.rank.instance.0;
                self.at(LATENCY, Event::Deliver(worker, n));
                self.on_their_way += 1;
                self.served.push(n);
                Fate::Served { worker, waited }
            }
            Err(error) => Fate::Refused(error.to_string()),
        };
        assert!(self.fates.insert(n, fate).is_none(), "{n} is answered twice");
    }

    /// What holds at every moment.
    fn check(&self) {
        assert_eq!(self.dispatch.waiting().requests, self.tickets.len());
        for view in self.dispatch.router().views() {
            let limits = view.worker.limits;
            let waiting = view.report.unwrap_or_default().waiting + view.pending.requests;
            assert!(
                waiting <= limits.max_waiting.max(1),
                "{waiting} are sent to a worker that queues {limits:?}"
            );
        }
    }
}

impl SimWorker {
    fn rests(&self) -> bool {
        let idle = self.running.is_empty() && self.waiting.is_empty();
        idle && self.settled.is_empty() && self.reports.is_empty() && !self.looks
    }
}
