//! By requests in hand per unit of weight, unsettled ones included; blind to locality.

use super::terms::{Term, Terms};
use super::{Candidate, Policy, Task};

/// See the module.
pub struct LeastLoaded;

impl Policy for LeastLoaded {
    fn name(&self) -> &'static str {
        "least-loaded"
    }

    fn score(&self, task: &Task<'_>) -> Vec<Terms> {
        task.candidates().map(cost).collect()
    }
}

/// Cost of `candidate`.
pub fn cost(candidate: &Candidate) -> Terms {
    Terms::of([(Term::Requests, f64::from(candidate.load.requests) / candidate.worker.weight)])
}
