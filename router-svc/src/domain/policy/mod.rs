//! The decision: a pure function of its inputs.
//!
//! Every policy is a cost per worker and task, in named terms; eligibility, ranking, the choice between local and remote prefill and
//! alternates are the same for all. Workers in doubt come after those that are not, workers without a report after those with one, then
//! the cost decides, and between equal costs a hash of worker and seed. The seed is an input, so equal inputs give equal decisions.

pub mod decide;
pub mod eligibility;
pub mod kv;
pub mod least_loaded;
pub mod pin;
#[cfg(test)]
mod properties;
pub mod round_robin;
pub mod terms;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::load::Load;
use super::units::{BlockSize, Blocks, Tokens};
use super::worker::{ServedSet, Worker};

/// How workers are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    /// By KV locality and load, in milliseconds.
    Kv,
    /// In turn.
    RoundRobin,
    /// By requests in hand.
    LeastLoaded,
}

impl PolicyKind {
    /// Name in configuration, metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::RoundRobin => "round-robin",
            Self::LeastLoaded => "least-loaded",
        }
    }
}

/// Weights of the cost, the same for every decision of a router.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How workers are scored.
    pub policy: PolicyKind,
    /// kappa: price of duplicating blocks that exist elsewhere, in units of computing them.
    pub kappa: f64,
    /// kappa of the prefill pool.
    pub kappa_prefill: f64,
    /// eta: weight of decode time against time to first token.
    pub eta: f64,
    /// Weight of the eviction-age term of the prefill pool.
    pub eviction_age: f64,
    /// E_o: output tokens of a request that names no expectation.
    pub expected_output: Tokens,
    /// Whether decode workers may prefill.
    pub local_prefill: bool,
    /// Whether a READY prefill worker is used whatever it costs.
    pub prefer_remote: bool,
}

impl Default for Settings {
    /// As tuned in simulation on public traces: kappa 2 (1 in a prefill pool), eta 0.05.
    fn default() -> Self {
        Self {
            policy: PolicyKind::Kv,
            kappa: 2.0,
            kappa_prefill: 1.0,
            eta: 0.05,
            eviction_age: 2.0,
            expected_output: Tokens(300),
            local_prefill: true,
            prefer_remote: false,
        }
    }
}

/// Where the prompt is to be computed, by the client's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillChoice {
    /// Where it costs less.
    #[default]
    ByCost,
    /// On a prefill worker whenever one is ready.
    Remote,
    /// On the decode worker.
    Local,
}

/// What a client asks of the choice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Constraints {
    /// Label and value that a worker must carry.
    pub labels: BTreeMap<String, String>,
    /// Only this decode worker.
    pub pin_decode: Option<WorkerRank>,
    /// Only this prefill worker.
    pub pin_prefill: Option<WorkerRank>,
    /// Never these.
    pub exclude: Vec<WorkerRank>,
    /// Where the prompt is computed.
    pub prefill: PrefillChoice,
}

/// What is to be decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Deployment.
    pub namespace: Arc<str>,
    /// Workers that can serve it.
    pub set: ServedSet,
    /// isl: all of the prompt, tokens generated before a migration included.
    pub prompt: Tokens,
    /// Scheme and block size of the hash list; none without one.
    pub hashes: Option<(Arc<str>, BlockSize)>,
    /// Choices that decode in parallel, at least 1.
    pub choices: u32,
    /// It was begun by a worker that gave it up or was lost: workers take it before new requests.
    pub migrated: bool,
    /// Expected output, when the client says so.
    pub expected_output: Option<Tokens>,
    /// Wishes.
    pub constraints: Constraints,
}

/// One worker of the served set, as it was at the decision.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which.
    pub worker: Arc<Worker>,
    /// Its load.
    pub load: Load,
    /// Blocks of the prompt that it is believed to have.
    pub matched: Blocks,
}

impl Candidate {
    /// u: prompt tokens that it must compute; at least one, for the last token is always computed.
    pub fn uncached(&self, prompt: Tokens) -> Tokens {
        let matched = self.worker.block_size.tokens(self.matched);
        Tokens(prompt.0.saturating_sub(matched.0).max(1))
    }
}

/// Everything that a decision depends on.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// What is to be decided.
    pub question: Arc<Question>,
    /// Workers of the set, by rank.
    pub candidates: Vec<Candidate>,
    /// Weights.
    pub settings: Settings,
    /// Breaks ties.
    pub seed: u64,
    /// How many decisions came before.
    pub turn: u64,
}

impl Inputs {
    /// Bytes they hold, roughly: what bounds the decisions that are kept.
    pub fn bytes(&self) -> usize {
        let labels: usize =
            self.question.constraints.labels.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        size_of::<Self>()
            + size_of::<Question>()
            + labels
            + self.question.constraints.exclude.len() * size_of::<WorkerRank>()
            + self.candidates.len() * size_of::<Candidate>()
    }
}

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody serves it now.
    #[error("no eligible worker: {0}")]
    NoWorkers(String),
    /// Everybody who could is full.
    #[error("every eligible worker is full")]
    Busy {
        /// When the first may have room, by the queue model.
        retry_after: Duration,
    },
    /// The sequence is too long for every worker.
    #[error("{prompt} prompt tokens do not fit the context of {limit}")]
    ContextLength {
        /// Asked.
        prompt: u64,
        /// Largest context of the set.
        limit: u64,
    },
    /// The sequence fits no KV pool.
    #[error("{prompt} prompt tokens do not fit a KV pool of {limit}")]
    Pool {
        /// Asked.
        prompt: u64,
        /// Largest pool of the set.
        limit: u64,
    },
    /// The hash list has another block size.
    #[error("blocks of {got} tokens, but the workers use {expected}")]
    BlockSize {
        /// The workers'.
        expected: u32,
        /// The request's.
        got: u32,
    },
    /// The hash list is of another scheme.
    #[error("block hashes by {got}, but the workers use {expected}")]
    HashScheme {
        /// The workers'.
        expected: Arc<str>,
        /// The request's.
        got: Arc<str>,
    },
    /// The pinned worker cannot take it.
    #[error("worker {rank} is {why}")]
    NotEligible {
        /// The pinned one.
        rank: WorkerRank,
        /// Why not.
        why: &'static str,
    },
}
