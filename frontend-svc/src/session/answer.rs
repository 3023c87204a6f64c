//! What a shell tells its client about a request.

use crate::domain::text::Delta;
use crate::ports::Phases;

/// Known once the request runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opened {
    /// Id of the decode worker, 16 hex digits.
    pub decode_worker: String,
    /// Id of the prefill worker; empty when the decode worker prefills.
    pub prefill_worker: String,
    /// Names the router's decision.
    pub decision_id: String,
}

/// What comes, in order: deltas, then one summary.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// New in one choice.
    Delta(Delta),
    /// The request is over.
    Finished(Summary),
}

/// The account of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of all choices.
    pub completion_tokens: u32,
    /// What happened to the prompt's tokens.
    pub phases: Phases,
    /// Times that the request moved while it ran.
    pub migrations: u32,
    /// One of them went to a worker with another compatibility key.
    pub migrated_inexact: bool,
}

impl Summary {
    /// Adds the account of another prompt of the same call.
    pub fn add(&mut self, other: &Summary) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.phases.cached += other.phases.cached;
        self.phases.transferred += other.phases.transferred;
        self.phases.computed += other.phases.computed;
        self.phases.remote_computed += other.phases.remote_computed;
        self.migrations += other.migrations;
        self.migrated_inexact |= other.migrated_inexact;
    }
}
