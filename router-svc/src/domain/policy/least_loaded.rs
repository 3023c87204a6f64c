//! By requests in hand per unit of weight, unsettled ones included; blind to locality.

use super::Candidate;
use super::terms::{Term, Terms};

/// Cost of `candidate`.
pub fn cost(candidate: &Candidate) -> Terms {
    Terms::of([(Term::Requests, f64::from(candidate.load.requests) / candidate.worker.weight)])
}
