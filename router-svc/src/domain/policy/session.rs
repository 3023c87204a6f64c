//! A conversation stays with its worker: rendezvous hashing of session and worker, by weight, with a bound on load.
//!
//! Every session has its own order of workers. The first in it that is not overloaded is taken; a worker is overloaded when it would have more
//! than 1.25 times its share of all requests in hand. When workers come or go only their own sessions move. A request without a session goes to
//! the least loaded worker.

use super::decide::draw;
use super::terms::{Term, Terms};
use super::{Candidate, Policy, Task, least_loaded};

/// Most requests of a worker, in units of its share.
const BOUND: f64 = 1.25;

/// See the module.
pub struct Session;

impl Policy for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    fn score(&self, task: &Task<'_>) -> Vec<Terms> {
        let Some(session) = task.inputs.question.constraints.session else {
            return task.candidates().map(least_loaded::cost).collect();
        };
        // The session's seed in place of the decision's: the order is the same for every request of the session.
        let distances: Vec<f64> =
            task.candidates().map(|candidate| draw(session.0, &candidate.worker)).collect();
        let weights: f64 = task.candidates().map(|candidate| candidate.worker.weight).sum();
        let requests: f64 = task.candidates().map(|candidate| f64::from(candidate.load.requests)).sum();
        let cost = |(candidate, own): (&Candidate, &f64)| {
            let place = distances.iter().filter(|other| *other < own).count() as f64;
            let share = (requests + 1.0) * candidate.worker.weight / weights;
            let overloaded = f64::from(candidate.load.requests) + 1.0 > (BOUND * share).ceil();
            let overload = if overloaded { distances.len() as f64 } else { 0.0 };
            Terms::of([(Term::Place, place), (Term::Overload, overload)])
        };
        task.candidates().zip(&distances).map(cost).collect()
    }
}
