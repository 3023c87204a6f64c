//! A request on its way: which workers generate which of its choices, and what happens when one of them does not.
//!
//! ```text
//!            placed          admitted          finished
//! planned ----------> asked ----------> running ----------> over
//!    ^                  |                  |
//!    |     refused      |   died, moved,   |
//!    +------------------+   gave it up     |
//!    +-------------------------------------+
//! ```
//!
//! A refusal is a retry: the same leg again without the refuser, at most [`Limits::retries`] times and only while the budget allows. A leg
//! that was admitted and is lost migrates without asking a budget: each unfinished choice that has tokens becomes a leg of its own, the
//! others stay together. A request survives [`Limits::deaths`] - 1 deaths.
//!
//! While nobody is READY a leg is held, not refused: during a restart of the only one, the next moment has another answer.

use std::collections::{BTreeMap, BTreeSet};

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};

use super::leg::{Failure, LegId, LegPlan, Meaning, meaning};

/// How often a request may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Refusals of one leg after which it is not asked again.
    pub retries: u32,
    /// Distinct workers that die with the request on them before it ends.
    pub deaths: usize,
    /// Moves of all kinds: ends a request that every worker gives up again.
    pub moves: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { retries: 3, deaths: 3, moves: 16 }
    }
}

/// The state of one request.
#[derive(Debug, Clone)]
pub struct Flight {
    limits: Limits,
    choices: Vec<Progress>,
    legs: BTreeMap<LegId, Leg>,
    next_leg: u32,
    excluded: BTreeSet<WorkerRank>,
    dead: BTreeSet<InstanceId>,
    moves: u32,
    migrations: u32,
    retries: u32,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    tokens: Vec<u32>,
    done: bool,
}

#[derive(Debug, Clone)]
struct Leg {
    reservation: ReservationKey,
    choices: Vec<u32>,
    worker: Option<WorkerRank>,
    admitted: bool,
    /// Set for a leg that replaces one that was lost.
    migrated: bool,
    refusals: u32,
    /// What the last worker that was asked said.
    refused: Option<Fault>,
}

/// What is to be done after a leg has ended early.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Route and generate these.
    Again(Vec<LegPlan>),
    /// Nobody is there to take this leg: route it a little later, or end with the fault.
    Hold(LegPlan, Fault),
    /// The request is over.
    End(Fault),
}

/// Tokens of a worker that do not continue what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("choice {choice}: the worker sent position {sent}, expected {expected}")]
pub struct OutOfOrder {
    choice: u32,
    sent: u32,
    expected: usize,
}

impl Flight {
    /// A request of `n` choices, and its first leg under reservation `id`.
    pub fn new(n: u32, limits: Limits, id: u128) -> (Self, LegPlan) {
        let mut flight = Self {
            limits,
            choices: vec![Progress::default(); n as usize],
            legs: BTreeMap::new(),
            next_leg: 0,
            excluded: BTreeSet::new(),
            dead: BTreeSet::new(),
            moves: 0,
            migrations: 0,
            retries: 0,
        };
        let plan = flight.launch(ReservationKey { id, attempt: 1 }, (0..n).collect(), false);
        (flight, plan)
    }

    /// A router chose `worker` for the leg.
    pub fn placed(&mut self, leg: LegId, worker: WorkerRank) {
        self.legs.entry(leg).and_modify(|it| it.worker = Some(worker));
    }

    /// The worker has taken the leg.
    pub fn admitted(&mut self, leg: LegId) {
        self.legs.entry(leg).and_modify(|it| it.admitted = true);
    }

    /// Tokens came for `choice`, the first of them at `position`. An error is a worker that breaks the contract.
    pub fn tokens(&mut self, leg: LegId, choice: u32, position: u32, ids: &[u32]) -> Result<(), OutOfOrder> {
        let expected = self.choices.get(choice as usize).map_or(0, |it| it.tokens.len());
        let mine = self.legs.get(&leg).is_some_and(|it| it.choices.contains(&choice));
        let Some(progress) = self.choices.get_mut(choice as usize).filter(|_| mine) else {
            return Err(OutOfOrder { choice, sent: position, expected });
        };
        if progress.done {
            return Ok(());
        }
        // A delta without tokens only ends the choice.
        if !ids.is_empty() && position as usize != expected {
            return Err(OutOfOrder { choice, sent: position, expected });
        }
        progress.tokens.extend_from_slice(ids);
        Ok(())
    }

    /// Nothing more is wanted of `choice`: it ended, or its text did.
    pub fn done(&mut self, choice: u32) {
        if let Some(progress) = self.choices.get_mut(choice as usize) {
            progress.done = true;
        }
    }

    /// Whether `choice` is over.
    pub fn is_done(&self, choice: u32) -> bool {
        self.choices.get(choice as usize).is_none_or(|it| it.done)
    }

    /// Whether nothing more is wanted of the leg.
    pub fn leg_done(&self, leg: LegId) -> bool {
        self.legs.get(&leg).is_none_or(|it| it.choices.iter().all(|choice| self.is_done(*choice)))
    }

    /// Whether every choice is over.
    pub fn all_done(&self) -> bool {
        self.choices.iter().all(|it| it.done)
    }

    /// The leg is over.
    pub fn close(&mut self, leg: LegId) {
        self.legs.remove(&leg);
    }

    /// The key of an open leg.
    pub fn reservation(&self, leg: LegId) -> Option<ReservationKey> {
        Some(self.legs.get(&leg)?.reservation)
    }

    /// The worker of an open leg.
    pub fn worker(&self, leg: LegId) -> Option<WorkerRank> {
        self.legs.get(&leg)?.worker
    }

    /// The worker of each open leg.
    pub fn workers(&self) -> impl Iterator<Item = (LegId, WorkerRank)> + '_ {
        self.legs.iter().filter_map(|(id, leg)| Some((*id, leg.worker?)))
    }

    /// Workers that died with the request on them.
    pub fn deaths(&self) -> usize {
        self.dead.len()
    }

    /// Times that the request moved while it ran.
    pub fn migrations(&self) -> u32 {
        self.migrations
    }

    /// Refusals after which another worker was asked.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Tokens generated for `choice`.
    pub fn generated(&self, choice: u32) -> &[u32] {
        self.choices.get(choice as usize).map_or(&[], |it| &it.tokens)
    }

    /// The leg failed. `budget` is asked for leave when this would be a retry; `draw` gives fresh reservation ids.
    pub fn failed(
        &mut self,
        leg: LegId,
        failure: Failure,
        budget: impl FnOnce() -> bool,
        draw: &mut dyn FnMut() -> u128,
    ) -> Next {
        let Some(lost) = self.legs.remove(&leg) else { return Next::Again(Vec::new()) };
        let Some(worker) = lost.worker else { return self.not_placed(lost, failure.fault) };
        let what = meaning(&failure, lost.admitted);
        if what == Meaning::Final {
            return Next::End(failure.fault);
        }
        self.excluded.insert(worker);
        if what == Meaning::Death {
            self.dead.insert(worker.instance);
            if self.dead.len() >= self.limits.deaths {
                let message = format!("{} workers were lost while they ran this request", self.dead.len());
                return Next::End(Fault::new(Reason::QueryOfDeath, message));
            }
        }
        if what == Meaning::Refused {
            let allowed = lost.refusals < self.limits.retries && (lost.migrated || budget());
            if !allowed {
                return Next::End(failure.fault);
            }
            self.retries += 1;
            return Next::Again(vec![self.again(lost, Some(failure.fault))]);
        }
        self.moves += 1;
        if self.moves > self.limits.moves {
            return Next::End(failure.fault);
        }
        Next::Again(self.migrate(lost, draw))
    }

    /// The worker gave one choice up, in order (drain, preemption); the rest of its leg goes on.
    pub fn given_up(&mut self, leg: LegId, choice: u32, draw: &mut dyn FnMut() -> u128) -> Next {
        let Some(from) = self.legs.get_mut(&leg).filter(|it| it.choices.contains(&choice)) else {
            return Next::Again(Vec::new());
        };
        self.excluded.extend(from.worker);
        self.moves += 1;
        self.migrations += 1;
        if self.moves > self.limits.moves {
            let message = format!("the request was given up {} times", self.moves);
            return Next::End(Fault::new(Reason::AllWorkersBusy, message));
        }
        from.choices.retain(|it| *it != choice);
        let key = if from.choices.is_empty() {
            ReservationKey { id: from.reservation.id, attempt: from.reservation.attempt + 1 }
        } else {
            ReservationKey { id: draw(), attempt: 1 }
        };
        Next::Again(vec![self.launch(key, vec![choice], true)])
    }

    /// No router found a worker for the leg.
    fn not_placed(&mut self, leg: Leg, fault: Fault) -> Next {
        if fault.reason != Reason::NoWorkers {
            return Next::End(fault);
        }
        if let Some(refusal) = leg.refused.clone() {
            if refusal.reason == Reason::Draining {
                // The last one is on its way out: what replaces it may be on its way in.
                return Next::Hold(self.again(leg, None), refusal);
            }
            // Whoever is left has said why not, and when it may be otherwise.
            return Next::End(refusal);
        }
        // A worker that gave the request up, or was away for a moment, is better than none; a dead one is not.
        let alive = self.excluded.iter().filter(|it| !self.dead.contains(&it.instance)).count();
        if alive == 0 || self.moves >= self.limits.moves {
            return Next::Hold(self.again(leg, None), fault);
        }
        self.moves += 1;
        let dead = &self.dead;
        self.excluded.retain(|it| dead.contains(&it.instance));
        Next::Again(vec![self.again(leg, None)])
    }

    fn migrate(&mut self, lost: Leg, draw: &mut dyn FnMut() -> u128) -> Vec<LegPlan> {
        self.migrations += u32::from(lost.admitted);
        let open: Vec<u32> = lost.choices.into_iter().filter(|choice| !self.is_done(*choice)).collect();
        let (begun, fresh): (Vec<u32>, Vec<u32>) =
            open.into_iter().partition(|choice| !self.generated(*choice).is_empty());
        let groups = begun.into_iter().map(|choice| vec![choice]).chain((!fresh.is_empty()).then_some(fresh));
        let groups: Vec<Vec<u32>> = groups.collect();
        let mut key = Some(ReservationKey { id: lost.reservation.id, attempt: lost.reservation.attempt + 1 });
        let mut plans = Vec::with_capacity(groups.len());
        for choices in groups {
            let key = key.take().unwrap_or_else(|| ReservationKey { id: draw(), attempt: 1 });
            plans.push(self.launch(key, choices, lost.admitted || lost.migrated));
        }
        plans
    }

    fn again(&mut self, last: Leg, refusal: Option<Fault>) -> LegPlan {
        let key = ReservationKey { id: last.reservation.id, attempt: last.reservation.attempt + 1 };
        let plan = self.launch(key, last.choices, last.migrated);
        self.legs.entry(plan.leg).and_modify(|it| {
            it.refusals = last.refusals + u32::from(refusal.is_some());
            it.refused = refusal;
        });
        plan
    }

    fn launch(&mut self, reservation: ReservationKey, choices: Vec<u32>, migrated: bool) -> LegPlan {
        let id = LegId(self.next_leg);
        self.next_leg += 1;
        let plan = LegPlan {
            leg: id,
            reservation,
            choices: choices.iter().map(|choice| (*choice, self.generated(*choice).to_vec())).collect(),
            exclude: self.excluded.iter().copied().collect(),
            migrated,
        };
        let leg =
            Leg { reservation, choices, worker: None, admitted: false, migrated, refusals: 0, refused: None };
        self.legs.insert(id, leg);
        plan
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
