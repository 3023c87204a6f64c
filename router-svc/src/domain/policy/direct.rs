//! The worker that the client names, and no other: whoever chooses outside (a gateway, a test) pins what it chose. Without a pinned decode worker
//! the request is refused; without a pinned prefill worker the decode worker computes the prompt.

use super::eligibility::Exclusion;
use super::terms::Terms;
use super::{Candidate, Policy, Question, Task};
use crate::domain::units::Side;

/// See the module.
pub struct Direct;

impl Policy for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    /// That another worker than the pinned one is out holds for every policy.
    fn filter(&self, question: &Question, side: Side, _candidate: &Candidate) -> Option<Exclusion> {
        question.constraints.pin(side).is_none().then_some(Exclusion::NoPin)
    }

    fn score(&self, task: &Task<'_>) -> Vec<Terms> {
        vec![Terms::default(); task.pool.len()]
    }
}
