//! A request that runs: follows its legs, gives what they say to the state machine and the texts, and does what these decide.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::InstanceId;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_stream::{StreamExt as _, StreamMap};

use super::answer::{Event, Opened, Summary};
use super::leg::{self, LegEvent, LegStream, Start};
use super::pipeline::{Admission, Pipeline};
use super::prepare::Prepared;
use crate::domain::deaths::Fingerprint;
use crate::domain::digest::Digest;
use crate::domain::flight::{Flight, Next};
use crate::domain::leg::{Failure, LegId, LegPlan};
use crate::domain::text::{ChoiceText, Delta, Finish, Token};
use crate::metrics::{Pace, Running};
use crate::models::catalogue::Catalogue;
use crate::ports::{Decision, End, Phases, Target, WorkerEvent};

/// How long the account of a worker is waited for when all text is there.
const ACCOUNT: Duration = Duration::from_secs(1);
/// Between two questions whether somebody is READY.
pub(super) const HOLD_PAUSE: Duration = Duration::from_millis(250);

/// A request on its way. Dropping it cancels all work for it.
pub struct Generation {
    pipeline: Arc<Pipeline>,
    request: Arc<Prepared>,
    fingerprint: Fingerprint,
    flight: Flight,
    texts: Vec<ChoiceText>,
    legs: StreamMap<LegId, LegStream>,
    /// Where each leg of them runs that has been placed.
    targets: BTreeMap<LegId, Target>,
    catalogue: watch::Receiver<Arc<Catalogue>>,
    ready: VecDeque<Delta>,
    /// Of the leg that was admitted first; until then, of the last one placed.
    opened: Opened,
    /// Of the worker that was admitted first; `Some(None)` when it is not known.
    compat_key: Option<Option<Digest>>,
    /// Workers of this request that were in the view at some time: only those can leave it.
    seen: BTreeSet<InstanceId>,
    summary: Summary,
    /// When the next token is overdue.
    overdue: Instant,
    /// Until when it may wait for room at a worker, before one has taken it.
    queue_until: Instant,
    /// How long it may wait for somebody to be READY, while it does.
    held_until: Option<Instant>,
    pace: Pace,
    over: bool,
    _running: Running,
    _admission: Admission,
}

impl Generation {
    pub(super) async fn start(
        pipeline: Arc<Pipeline>,
        request: Prepared,
        admission: Admission,
        fingerprint: Fingerprint,
    ) -> Result<Self, Fault> {
        let now = Instant::now();
        let (flight, plan) = Flight::new(request.params.n, pipeline.settings.limits, pipeline.draw());
        let silent = request.silent_tokens();
        let stop = &request.params.stop;
        let text = |choice| ChoiceText::new(choice, request.detokenizer(), stop, silent.clone());
        let prompt_tokens = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX);
        let mut generation = Self {
            texts: (0..request.params.n).map(text).collect(),
            flight,
            legs: StreamMap::new(),
            targets: BTreeMap::new(),
            catalogue: pipeline.outside.catalogue.clone(),
            ready: VecDeque::new(),
            opened: Opened::default(),
            compat_key: None,
            seen: BTreeSet::new(),
            summary: Summary { prompt_tokens, ..Summary::default() },
            overdue: now + pipeline.settings.first_token,
            queue_until: pipeline.queue_until(&request.caller),
            held_until: None,
            pace: pipeline.metrics.pace(&request.set.name, prompt_tokens, now),
            over: false,
            _running: pipeline.metrics.running(),
            _admission: admission,
            fingerprint,
            request: Arc::new(request),
            pipeline,
        };
        generation.launch(plan, Duration::ZERO);
        while generation.ready.is_empty() && !generation.over {
            generation.step().await?;
        }
        Ok(generation)
    }

    /// The request as it was prepared.
    pub fn request(&self) -> &Arc<Prepared> {
        &self.request
    }

    /// Who runs it.
    pub fn opened(&self) -> Opened {
        self.opened.clone()
    }

    /// What comes next; `None` after the summary or an error.
    pub async fn next(&mut self) -> Option<Result<Event, Fault>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Some(Ok(Event::Delta(delta)));
            }
            if self.over {
                return None;
            }
            if self.legs.is_empty() {
                self.over = true;
                return Some(Ok(Event::Finished(self.account())));
            }
            if let Err(fault) = self.step().await {
                return Some(Err(fault));
            }
        }
    }

    fn account(&mut self) -> Summary {
        self.summary.completion_tokens = self.texts.iter().map(ChoiceText::tokens).sum();
        self.summary.migrations = self.flight.migrations();
        self.summary.phases.cached = self.summary.phases.cached.min(self.summary.prompt_tokens);
        self.pace.finished(&self.summary);
        self.summary.clone()
    }

    /// Waits for one thing to happen and deals with it. An error ends the request.
    async fn step(&mut self) -> Result<(), Fault> {
        let until = self.deadline();
        let drain = self.pipeline.outside.drain.clone();
        tokio::select! {
            biased;
            event = timeout_at(until, self.legs.next()) => match event {
                Ok(Some((leg, event))) => self.take(leg, event),
                Ok(None) => Ok(()),
                Err(_) => self.late(),
            },
            Ok(()) = self.catalogue.changed() => self.look_for_the_gone(),
            () = drain.time_up() => Err(Fault::new(Reason::Draining, "this frontend shuts down, and the time for what was running is over")),
        }
        .inspect_err(|_| self.end())
    }

    fn end(&mut self) {
        self.legs.clear();
        self.over = true;
    }

    fn deadline(&self) -> Instant {
        let own = self.request.caller.call.deadline;
        own.map_or(self.overdue, |own| own.min(self.overdue))
    }

    fn late(&mut self) -> Result<(), Fault> {
        if self.flight.all_done() {
            self.legs.clear();
            return Ok(());
        }
        let own = self.request.caller.call.deadline.is_some_and(|own| own <= self.overdue);
        let message = match (own, self.pace.begun()) {
            (true, _) => "the deadline of the call has passed".to_owned(),
            (false, false) => format!("no token within {} s", self.pipeline.settings.first_token.as_secs()),
            (false, true) => format!("no token for {} s", self.pipeline.settings.between_tokens.as_secs()),
        };
        Err(Fault::new(Reason::DeadlineExceeded, message))
    }

    fn take(&mut self, leg: LegId, event: LegEvent) -> Result<(), Fault> {
        match event {
            LegEvent::Placed(decision) => self.placed(leg, &decision),
            LegEvent::Worker(WorkerEvent::Started { cached_tokens }) => {
                self.admitted(leg);
                self.summary.phases = Phases { cached: cached_tokens, ..Phases::default() };
            }
            LegEvent::Worker(WorkerEvent::Tokens { choice, position, tokens, end }) => {
                return self.tokens(leg, choice, position, tokens, end);
            }
            LegEvent::Worker(WorkerEvent::Finished(phases)) => {
                self.summary.phases = phases;
                if !self.flight.leg_done(leg) {
                    return self.fail(leg, broken("the worker finished without ending every choice"));
                }
                self.close(leg);
            }
            LegEvent::Failed(_) if self.flight.leg_done(leg) => self.close(leg),
            LegEvent::Failed(failure) => return self.fail(leg, failure),
        }
        Ok(())
    }

    fn placed(&mut self, leg: LegId, decision: &Decision) {
        let worker = decision.decode.worker;
        self.flight.placed(leg, worker);
        self.targets.insert(leg, decision.decode.clone());
        if self.catalogue.borrow().knows(worker.instance) {
            self.seen.insert(worker.instance);
        }
        if self.compat_key.is_none() {
            self.opened = Opened {
                decode_worker: worker.instance.to_string(),
                prefill_worker: decision
                    .prefill
                    .first()
                    .map(|it| it.worker.instance.to_string())
                    .unwrap_or_default(),
                decision_id: decision.decision_id.clone(),
            };
        }
    }

    fn admitted(&mut self, leg: LegId) {
        self.held_until = None;
        self.flight.admitted(leg);
        let Some(worker) = self.flight.worker(leg) else { return };
        let key = self.catalogue.borrow().compat_key(worker.instance).cloned();
        let first = self.compat_key.get_or_insert_with(|| key.clone());
        // Keys that are not known are not equal.
        let exact = first.is_some() && *first == key;
        self.summary.migrated_inexact |= self.flight.migrations() > 0 && !exact;
    }

    fn tokens(
        &mut self,
        leg: LegId,
        choice: u32,
        position: u32,
        tokens: Vec<Token>,
        end: Option<End>,
    ) -> Result<(), Fault> {
        if self.flight.is_done(choice) {
            return Ok(());
        }
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        if let Err(error) = self.flight.tokens(leg, choice, position, &ids) {
            tracing::warn!(%error, request_id = self.request.caller.request_id(), "worker broke the order of tokens");
            return self.fail(leg, broken("the worker broke the order of tokens"));
        }
        let now = Instant::now();
        self.pace.tokens(ids.len(), now);
        self.overdue = now + self.pipeline.settings.between_tokens;
        let finish = match end {
            Some(End::Stop) => Some(Finish::Stop),
            Some(End::Length) => Some(Finish::Length),
            Some(End::Migrate | End::Cancelled | End::Failed) | None => None,
        };
        self.show(leg, choice, tokens, finish);
        match end {
            Some(End::Migrate) if !self.flight.is_done(choice) => {
                let (flight, pipeline) = (&mut self.flight, &self.pipeline);
                let next = flight.given_up(leg, choice, &mut || pipeline.draw());
                if self.flight.leg_done(leg) {
                    self.close(leg);
                }
                self.go_on(next)
            }
            Some(End::Cancelled) => self.fail(leg, broken("the worker cancelled the request")),
            Some(End::Failed) => {
                let fault = Fault::new(Reason::EngineFailed, "the worker's engine failed");
                self.fail(leg, Failure { fault, contacted: true })
            }
            _ => Ok(()),
        }
    }

    fn show(&mut self, leg: LegId, choice: u32, tokens: Vec<Token>, finish: Option<Finish>) {
        let decoder = self.request.set.tokenizer.decoder(self.request.skip_special_tokens);
        let Some(text) = self.texts.get_mut(choice as usize) else { return };
        let delta = text.push(tokens, finish, &decoder);
        if delta.finish.is_some() {
            self.flight.done(choice);
            // A stop string: the worker does not know yet that it is done.
            match finish {
                None if self.flight.leg_done(leg) => self.close(leg),
                None => self.end_choice(leg, choice),
                Some(_) => {}
            }
            if self.flight.all_done() {
                self.overdue = Instant::now() + ACCOUNT;
            }
        }
        if delta.finish.is_some() || !delta.text.is_empty() || !delta.tokens.is_empty() {
            self.ready.push_back(delta);
        }
    }

    /// A worker that is no longer in the view is gone, whatever its connection says.
    fn look_for_the_gone(&mut self) -> Result<(), Fault> {
        let catalogue = self.catalogue.borrow_and_update().clone();
        let mut gone = Vec::new();
        for (leg, worker) in self.flight.workers() {
            if catalogue.knows(worker.instance) {
                self.seen.insert(worker.instance);
            } else if self.seen.contains(&worker.instance) {
                gone.push(leg);
            }
        }
        for leg in gone {
            let fault = Fault::new(Reason::WorkerLost, "the worker has left the view");
            self.fail(leg, Failure { fault, contacted: true })?;
        }
        Ok(())
    }

    fn fail(&mut self, leg: LegId, failure: Failure) -> Result<(), Fault> {
        self.legs.remove(&leg);
        self.targets.remove(&leg);
        tracing::info!(
            request_id = self.request.caller.request_id(),
            reason = failure.fault.reason.as_str(),
            error = %failure.fault,
            "a worker did not finish a request"
        );
        let deaths = self.flight.deaths();
        let retries = self.flight.retries();
        let (flight, pipeline) = (&mut self.flight, &self.pipeline);
        let next = flight.failed(leg, failure, || pipeline.may_retry(), &mut || pipeline.draw());
        if self.flight.deaths() > deaths {
            self.pipeline.record_death(self.fingerprint);
        }
        self.pipeline.metrics.retries.inc_by(u64::from(self.flight.retries() - retries));
        self.go_on(next)
    }

    fn go_on(&mut self, next: Next) -> Result<(), Fault> {
        match next {
            Next::Again(plans) => {
                plans.into_iter().for_each(|plan| self.launch(plan, Duration::ZERO));
                Ok(())
            }
            Next::Hold(plan, _) if self.may_hold() => {
                self.launch(plan, HOLD_PAUSE);
                Ok(())
            }
            Next::Hold(_, mut fault) | Next::End(mut fault) => {
                fault.work_done |= self.pace.begun();
                Err(fault)
            }
        }
    }

    /// Whether there is time left to wait for somebody to be READY.
    fn may_hold(&mut self) -> bool {
        let now = Instant::now();
        if self.held_until.is_none() {
            self.pipeline.metrics.held.inc();
        }
        now < *self.held_until.get_or_insert(now + self.pipeline.settings.hold)
    }

    fn launch(&mut self, plan: LegPlan, pause: Duration) {
        let id = plan.leg;
        let outside = &self.pipeline.outside;
        // A leg that replaces one has as long again, whatever the client wanted: it has seen tokens, and waits in mid-stream.
        let queue_until =
            if plan.migrated { Instant::now() + self.pipeline.settings.max_queue } else { self.queue_until };
        let start = Start { plan, pause, queue_until };
        let stream = leg::run(outside.routing.clone(), outside.workers.clone(), self.request.clone(), start);
        self.legs.insert(id, stream);
    }

    fn close(&mut self, leg: LegId) {
        self.flight.close(leg);
        self.legs.remove(&leg);
        self.targets.remove(&leg);
    }

    /// Others of the leg go on: its worker need not compute this choice for nobody.
    fn end_choice(&self, leg: LegId, choice: u32) {
        if let (Some(target), Some(key)) = (self.targets.get(&leg), self.flight.reservation(leg)) {
            self.pipeline.outside.workers.end_choice(target, key, choice);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.over {
            self.pipeline.metrics.disconnects.inc();
        }
    }
}

/// A worker that does not keep the contract: elsewhere it may go better.
fn broken(message: &str) -> Failure {
    Failure { fault: Fault::new(Reason::Unspecified, message), contacted: true }
}
