//! The whole state of a router, and what changes it: membership, reports, KV events, requests, time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};

use super::dispatch::NotHeld;
use super::explain::{DecisionNumber, Explanation, KeptDecisions, Outcome};
use super::fit::Fits;
use super::index::approximate::Approximate;
use super::index::predicted::Predicted;
use super::index::snapshot::Snapshot;
use super::index::wire::{Batch, CheckedIndex, Doubt, Mark};
use super::index::{IndexTotals, Matches, RankBlocks};
use super::kv_reader::RankView;
use super::load::{Load, Report};
use super::policy::decide::{Choice, evaluate};
use super::policy::{Candidate, Inputs, Overrides, Question, Refusal, Settings};
use super::reservations::{Booking, Known, Leg, Pending, Reservations, Settled, SettledLeg, TooMany};
use super::units::{Blocks, Micros, Millis, SequenceHash, Side, Time, Tokens};
use super::worker::{Status, Worker};

mod room;

/// Decisions for one request that are made again because a chosen worker had less than was believed; the last one stands.
const VERIFICATIONS: usize = 3;

/// A chosen worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Which.
    pub rank: WorkerRank,
    /// Its gRPC address.
    pub address: Arc<str>,
    /// Prompt blocks it is believed to have.
    pub matched: Blocks,
}

/// An answer to Route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// Names the decision.
    pub number: DecisionNumber,
    /// Leads the request.
    pub decode: Target,
    /// Prefills: the choice, then alternates. Empty: the decode worker does.
    pub prefill: Vec<Target>,
    /// Whether the decode worker may not prefill when those fail.
    pub local_prefill_forbidden: bool,
}

impl Routed {
    /// Who was chosen.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            decode: Some(self.decode.rank),
            prefill: self.prefill.iter().map(|target| target.rank).collect(),
        }
    }
}

/// Why Route has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No decision.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The reservation was released before.
    #[error("the reservation was released")]
    Released,
    /// The bound of reservations is reached.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// Nobody has room, and it does not wait for that, or no longer.
    #[error(transparent)]
    NotHeld(#[from] NotHeld),
}

/// A request to be routed.
#[derive(Debug, Clone)]
pub struct Request {
    /// Idempotency key.
    pub key: ReservationKey,
    /// What is to be decided.
    pub question: Arc<Question>,
    /// Full blocks of the prompt.
    pub prompt: Arc<[SequenceHash]>,
}

/// A router's view of one worker.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// Its registration and card.
    pub worker: Arc<Worker>,
    /// Its last report.
    pub report: Option<Report>,
    /// What no report has settled.
    pub pending: Pending,
    /// What the index holds of it.
    pub held: RankBlocks,
    /// How far its events are applied; none: UNKNOWN.
    pub mark: Option<Mark>,
}

/// Gauges of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Workers.
    pub workers: usize,
    /// Of those, UNKNOWN to the index.
    pub unknown: usize,
    /// The index.
    pub index: IndexTotals,
    /// Predicted blocks.
    pub predicted: usize,
    /// Blocks that workers without KV events are believed to have.
    pub approximate: usize,
    /// Unsettled reservations.
    pub open: usize,
    /// Ended reservations remembered.
    pub remembered: usize,
    /// Bytes of kept decisions.
    pub decision_bytes: usize,
}

/// The state.
pub struct Router {
    workers: BTreeMap<WorkerRank, Arc<Worker>>,
    reports: HashMap<WorkerRank, Report>,
    index: CheckedIndex,
    predicted: Predicted,
    approximate: Approximate,
    reservations: Reservations<Arc<Routed>>,
    kept: KeptDecisions,
    fits: Fits,
    topology: Arc<[String]>,
    settings: Settings,
    decisions: u64,
    /// What may be queued at a worker while others have nothing to do with it; none: what the worker takes.
    depth: Option<Millis>,
}

impl Router {
    /// Without workers.
    pub fn new(
        settings: Settings,
        index: CheckedIndex,
        predicted: Predicted,
        reservations: Reservations<Arc<Routed>>,
        kept: KeptDecisions,
    ) -> Self {
        Self {
            workers: BTreeMap::new(),
            reports: HashMap::new(),
            index,
            predicted,
            approximate: Approximate::new(0, Duration::ZERO, 0),
            reservations,
            kept,
            fits: Fits::default(),
            topology: Arc::new([]),
            settings,
            decisions: 0,
            depth: None,
        }
    }

    /// With labels that say where a worker is, from coarse to fine; before, all are equally near.
    #[must_use]
    pub fn placed_by(self, topology: Arc<[String]>) -> Self {
        Self { topology, ..self }
    }

    /// With a memory of what workers without KV events have taken; before, they are believed to have nothing.
    #[must_use]
    pub fn approximating(self, approximate: Approximate) -> Self {
        Self { approximate, ..self }
    }

    /// Refuses new requests as long as every eligible worker has more than `depth` of work queued, and at least two requests.
    #[must_use]
    pub fn with_depth(self, depth: Option<Millis>) -> Self {
        Self { depth, ..self }
    }

    /// Takes the present membership; what is no longer in it is dropped with its load and blocks.
    pub fn members(&mut self, workers: Vec<Worker>, now: Time) {
        let mut present: BTreeMap<_, _> = workers.into_iter().map(|worker| (worker.rank, worker)).collect();
        let gone: Vec<_> = self.workers.keys().filter(|rank| !present.contains_key(rank)).copied().collect();
        for rank in gone {
            self.workers.remove(&rank);
            self.reports.remove(&rank);
            self.fits.drop_rank(rank);
            self.index.forget_rank(rank);
            self.predicted.drop_rank(rank);
            self.approximate.drop_rank(rank);
            self.reservations.drop_worker(rank, now);
        }
        for (rank, worker) in &mut present {
            // A worker's own word that it drains comes before discovery has it.
            if self.reports.get(rank).is_some_and(|report| report.draining) {
                worker.status = Status::Draining;
            }
            worker.fit = self.fits.of(worker);
        }
        self.workers = present.into_iter().map(|(rank, worker)| (rank, Arc::new(worker))).collect();
    }

    /// Takes a report of an instance: its ranks, and the reservations it has settled, at once, so that no request counts twice or not at all.
    pub fn report(
        &mut self,
        instance: InstanceId,
        ranks: Vec<(WorkerRank, Report)>,
        settled: &[Settled],
        now: Time,
    ) {
        for (rank, report) in ranks {
            let Some(worker) = self.workers.get_mut(&rank) else { continue };
            if report.draining && worker.status != Status::Draining {
                Arc::make_mut(worker).status = Status::Draining;
            }
            if let Some(model) = report.step_model {
                self.fits.take(rank, model);
            }
            self.reports.insert(rank, report);
        }
        if self.fits.refresh(self.workers.values().map(|worker| &**worker), now) {
            for worker in self.workers.values_mut() {
                let fit = self.fits.of(worker);
                if worker.fit != fit {
                    Arc::make_mut(worker).fit = fit;
                }
            }
        }
        for settled in settled {
            for SettledLeg { leg, stored } in self.reservations.settle(instance, settled, now) {
                let worker = self.workers.get(&leg.worker).filter(|worker| !worker.tells_blocks());
                match worker {
                    _ if !stored => self.predicted.withdraw(leg.worker, &leg.promised),
                    Some(worker) => self.approximate.store(leg.worker, worker.kv_blocks, &leg.promised, now),
                    None => {}
                }
            }
        }
    }

    /// Takes a batch of KV events; after a doubt the rank needs a snapshot.
    pub fn kv_batch(&mut self, rank: WorkerRank, batch: &Batch) -> Result<(), Doubt> {
        if !self.workers.contains_key(&rank) {
            return Ok(());
        }
        self.index.apply(rank, batch)
    }

    /// Takes a whole set.
    pub fn kv_snapshot(&mut self, rank: WorkerRank, snapshot: &Snapshot) -> Result<(), Doubt> {
        if !self.workers.contains_key(&rank) {
            return Ok(());
        }
        self.index.replace(rank, snapshot)
    }

    /// Makes a rank UNKNOWN.
    pub fn kv_doubt(&mut self, rank: WorkerRank) {
        self.index.forget_rank(rank);
    }

    /// How far a rank's events are applied; none: UNKNOWN.
    pub fn kv_mark(&self, rank: WorkerRank) -> Option<Mark> {
        self.index.mark(rank)
    }

    /// Blocks per rank from the first of `prompt` on, as workers have said them.
    pub fn find(&self, prompt: &[SequenceHash]) -> Matches {
        self.index.find(prompt)
    }

    /// How far a rank's events are applied, and how far the worker says they go.
    pub fn kv_view(&self, rank: WorkerRank) -> RankView {
        let said = self.reports.get(&rank).map_or(0, |report| report.kv_batch);
        RankView { mark: self.index.mark(rank), said }
    }

    /// Decides and books; a key that was answered before gets that answer and books nothing.
    pub fn route(&mut self, request: &Request, seed: u64, now: Time) -> Result<Arc<Routed>, RouteError> {
        self.expire(now);
        match self.reservations.known(request.key) {
            Known::New => {}
            Known::Answered(answer) => return Ok(answer),
            Known::Released => return Err(RouteError::Released),
        }
        let mut candidates = self.candidates(&request.question, now);
        self.room(&request.question, &candidates)?;
        let predicted = self.predicted.find(&request.prompt);
        let believed = self.approximate.find(&request.prompt).or(&predicted);
        let matches = self.index.find(&request.prompt).or(&believed);
        for candidate in &mut candidates {
            candidate.matched = matches.of(candidate.worker.rank);
        }
        let mut inputs = Inputs {
            candidates,
            question: request.question.clone(),
            topology: self.topology.clone(),
            settings: self.settings.with(request.question.constraints.overrides),
            seed,
            turn: self.decisions,
        };
        let mut choice = evaluate(&inputs).choice?;
        for _ in 0..VERIFICATIONS {
            if self.verify(&mut inputs, &choice, &request.prompt, &believed) {
                break;
            }
            choice = evaluate(&inputs).choice?;
        }
        let number = DecisionNumber(self.decisions + 1);
        let answer = Arc::new(self.answer(&inputs, &choice, number));
        let legs = legs(&inputs, &choice, &request.prompt, &predicted);
        let targets: Vec<_> = legs.iter().map(|leg| leg.worker).collect();
        self.reservations.book(request.key, answer.clone(), legs, now)?;
        for rank in targets {
            self.predicted.promise(rank, &request.prompt, now);
        }
        for target in answer.prefill.first().into_iter().chain([&answer.decode]) {
            self.index.hit(&request.prompt[..target.matched.0 as usize]);
        }
        self.decisions += 1;
        self.kept.keep(number, inputs, now);
        Ok(answer)
    }

    /// Whether the chosen workers have what they are believed to have, by their own word or `otherwise`; where not, the inputs say so from
    /// now on.
    fn verify(
        &self,
        inputs: &mut Inputs,
        choice: &Choice,
        prompt: &[SequenceHash],
        otherwise: &Matches,
    ) -> bool {
        let mut right = true;
        for at in choice.prefill.first().into_iter().chain([&choice.decode]) {
            let candidate = &mut inputs.candidates[*at];
            let rank = candidate.worker.rank;
            let believed = &prompt[..candidate.matched.0 as usize];
            let verified = self.index.verify(rank, believed).max(otherwise.of(rank));
            if verified < candidate.matched {
                candidate.matched = verified;
                right = false;
            }
        }
        right
    }

    /// Ends reservations, known or not.
    pub fn release(&mut self, keys: &[ReservationKey], now: Time) {
        for key in keys {
            for leg in self.reservations.release(*key, now) {
                self.predicted.withdraw(leg.worker, &leg.promised);
            }
        }
    }

    /// Lets the index do what it has put off.
    pub fn tidy(&mut self) {
        self.index.tidy();
    }

    /// Lets time pass: admission deadlines, promises, memories. Answers how many legs nobody has named in time.
    pub fn expire(&mut self, now: Time) -> usize {
        let unnamed = self.reservations.expire(now);
        for leg in &unnamed {
            self.predicted.withdraw(leg.worker, &leg.promised);
        }
        self.predicted.expire(now);
        self.approximate.expire(now);
        unnamed.len()
    }

    /// Explains a decision; none when it is not kept.
    pub fn explain(&self, number: DecisionNumber, now: Time) -> Option<Explanation> {
        self.kept.explain(number, None, now)
    }

    /// Explains a decision, and who would have been chosen with other weights; none when it is not kept.
    pub fn explain_under(
        &self,
        number: DecisionNumber,
        weights: Overrides,
        now: Time,
    ) -> Option<Explanation> {
        self.kept.explain(number, Some(weights), now)
    }

    /// The inputs of a decision; none when they are not kept.
    pub fn inputs(&self, number: DecisionNumber) -> Option<&Inputs> {
        self.kept.inputs(number)
    }

    /// Decisions made so far.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Whether every worker that is ready has reported.
    pub fn all_reported(&self) -> bool {
        let mut ready = self.workers.iter().filter(|(_, worker)| worker.status == Status::Ready);
        ready.all(|(rank, _)| self.reports.contains_key(rank))
    }

    /// Every worker as it is seen, by rank.
    pub fn views(&self) -> Vec<WorkerView> {
        let view = |(rank, worker): (&WorkerRank, &Arc<Worker>)| WorkerView {
            worker: worker.clone(),
            report: self.reports.get(rank).cloned(),
            pending: self.reservations.pending(*rank),
            held: self.index.rank(*rank),
            mark: self.index.mark(*rank),
        };
        self.workers.iter().map(view).collect()
    }

    /// Its gauges.
    pub fn totals(&self) -> Totals {
        Totals {
            workers: self.workers.len(),
            unknown: self
                .workers
                .iter()
                .filter(|(rank, worker)| worker.tells_blocks() && self.index.mark(**rank).is_none())
                .count(),
            index: self.index.totals(),
            predicted: self.predicted.blocks(),
            approximate: self.approximate.blocks(),
            open: self.reservations.open(),
            remembered: self.reservations.remembered(),
            decision_bytes: self.kept.bytes(),
        }
    }

    /// How workers are scored.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// What `key` stands for.
    pub fn known(&self, key: ReservationKey) -> Known<Arc<Routed>> {
        self.reservations.known(key)
    }

    fn load(&self, worker: &Worker, now: Time) -> Load {
        Load::of(worker, self.reports.get(&worker.rank), self.reservations.pending(worker.rank), now)
    }

    /// Workers that serve it, not yet matched with its blocks.
    fn candidates(&self, question: &Question, now: Time) -> Vec<Candidate> {
        let serves =
            |worker: &&Arc<Worker>| worker.namespace == question.namespace && worker.set == question.set;
        let candidate = |worker: &Arc<Worker>| {
            let report = self.reports.get(&worker.rank);
            Candidate {
                load: self.load(worker, now),
                matched: Blocks(0),
                worker: worker.clone(),
                warm_peers: report.map(|report| report.warm_peers.clone()).unwrap_or_default(),
            }
        };
        self.workers.values().filter(serves).map(candidate).collect()
    }

    fn answer(&self, inputs: &Inputs, choice: &Choice, number: DecisionNumber) -> Routed {
        let target = |at: usize| {
            let Candidate { worker, matched, .. } = &inputs.candidates[at];
            Target { rank: worker.rank, address: worker.address.clone(), matched: *matched }
        };
        let aggregated = inputs.candidates[choice.decode].worker.roles.aggregated;
        Routed {
            number,
            decode: target(choice.decode),
            prefill: choice.prefill.iter().map(|at| target(*at)).collect(),
            local_prefill_forbidden: !self.settings.local_prefill && !aggregated,
        }
    }
}

/// What a decision books. Blocks that an earlier request of the same beginning is to bring (`predicted`) count there.
fn legs(inputs: &Inputs, choice: &Choice, promised: &Arc<[SequenceHash]>, predicted: &Matches) -> Vec<Leg> {
    let question = &inputs.question;
    let leg = |at: usize, side, computes: bool, requests| {
        let candidate = &inputs.candidates[at];
        let uncached = if computes { candidate.uncached(question.prompt) } else { Tokens(0) };
        let cost = candidate.worker.step_cost();
        let covering = candidate.worker.block_size.covering(question.prompt);
        let shared = predicted.of(candidate.worker.rank);
        let booking = Booking {
            uncached,
            work: Micros::from(cost.service(uncached)),
            blocks: Blocks(covering.0.saturating_sub(shared.0)),
            requests,
        };
        Leg { worker: candidate.worker.rank, side, booking, promised: promised.clone() }
    };
    let decode = leg(choice.decode, Side::Decode, choice.prefill.is_empty(), question.choices);
    let prefill = choice.prefill.first().map(|at| leg(*at, Side::Prefill, true, 1));
    std::iter::once(decode).chain(prefill).collect()
}
