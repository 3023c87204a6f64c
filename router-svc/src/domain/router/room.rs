//! Who has room for a request, before it is asked who is best.

use std::sync::Arc;

use armature_contracts::ids::{InstanceId, WorkerRank};

use super::Router;
use crate::domain::backlog::PoolKey;
use crate::domain::load::Load;
use crate::domain::policy::decide::{RETRY_AFTER, evaluate};
use crate::domain::policy::eligibility::exclusion;
use crate::domain::policy::{Candidate, Inputs, Question, Refusal};
use crate::domain::router::Request;
use crate::domain::units::{Side, Time, Tokens};
use crate::domain::worker::Worker;

impl Router {
    /// Why nobody could take such a request now, whatever blocks anybody has.
    pub fn assess(&self, question: &Arc<Question>, now: Time) -> Result<(), Refusal> {
        let candidates = self.candidates(question, now);
        self.room(question, &candidates)?;
        let inputs = Inputs {
            question: question.clone(),
            candidates,
            topology: self.topology.clone(),
            settings: self.settings.with(question.constraints.overrides),
            seed: 0,
            turn: self.decisions,
        };
        evaluate(&inputs).choice.map(drop)
    }

    /// Prompt tokens that the worker with most of its blocks would have to compute.
    pub fn least_uncached(&self, request: &Request, now: Time) -> Tokens {
        let matches = self.index.find(&request.prompt);
        let candidates = self.candidates(&request.question, now);
        let uncached = |mut candidate: Candidate| {
            candidate.matched = matches.of(candidate.worker.rank);
            candidate.uncached(request.question.prompt)
        };
        candidates.into_iter().map(uncached).min().unwrap_or(request.question.prompt)
    }

    /// The workers that an instance belongs to, if its room matters to requests that wait for them.
    pub fn pool_of(&self, instance: InstanceId, now: Time) -> Option<PoolKey> {
        let ranks = WorkerRank { instance, dp_rank: 0 }..=WorkerRank { instance, dp_rank: u32::MAX };
        let mut ranks = self.workers.range(ranks).map(|(_, worker)| worker);
        // Where decode workers may not prefill, those who prefill for them matter, too.
        let helps = |worker: &Worker| !worker.roles.leads() && !self.settings.local_prefill;
        let worker = ranks.find(|worker| self.takes(worker, true, now) || helps(worker))?;
        Some(PoolKey::new(worker.namespace.clone(), worker.set.clone()))
    }

    /// Whether one of these workers has room to lead a request: a new one, or, where such wait, a migrated one.
    pub fn has_room(&self, pool: &PoolKey, migrated: bool, now: Time) -> bool {
        let mut workers = self.workers.values().filter(|worker| pool.is(&worker.namespace, &worker.set));
        workers.any(|worker| self.takes(worker, migrated, now))
    }

    fn takes(&self, worker: &Worker, migrated: bool, now: Time) -> bool {
        let load = self.load(worker, now);
        let takes_new = || !load.full(worker, false) && !self.is_deep(&load, worker);
        worker.roles.leads() && (takes_new() || (migrated && !load.full(worker, true)))
    }

    /// Refuses a new request when everybody who could lead it has too much queued.
    pub(super) fn room(&self, question: &Question, candidates: &[Candidate]) -> Result<(), Refusal> {
        if self.depth.is_none() || question.migrated {
            return Ok(());
        }
        let policy = self.settings.policy.policy();
        let out = |it: &&Candidate| {
            let why = exclusion(question, Side::Decode, it);
            why.or_else(|| policy.filter(question, Side::Decode, it)).is_some()
        };
        let eligible = || candidates.iter().filter(|it| !out(it));
        if eligible().next().is_none() || eligible().any(|it| !self.is_deep(&it.load, &it.worker)) {
            return Ok(());
        }
        let queue = |it: &Candidate| it.load.queue(&it.worker.step_cost()).duration();
        let soonest = eligible().map(queue).min().unwrap_or_default();
        Err(Refusal::Busy { retry_after: soonest.clamp(RETRY_AFTER.0, RETRY_AFTER.1) })
    }

    fn is_deep(&self, load: &Load, worker: &Worker) -> bool {
        self.depth.is_some_and(|depth| load.deep(&worker.step_cost(), depth))
    }
}
