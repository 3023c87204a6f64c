//! What is known of a worker from its registration and its card.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use armature_contracts::ids::WorkerRank;

use super::fit::StepFit;
use super::step_cost::{StepCost, StepPrior};
use super::units::{BlockSize, Blocks, Tokens};

/// Where a worker is between starting and gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Serves.
    Ready,
    /// In doubt: kept, ranked after every worker that is ready.
    Suspect,
    /// Not yet serving.
    Starting,
    /// Takes no new work.
    Draining,
}

impl Status {
    /// Name on the wire and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Suspect => "SUSPECT",
            Self::Starting => "STARTING",
            Self::Draining => "DRAINING",
        }
    }
}

/// A content digest, of any length that a card names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Digest(pub Arc<[u8]>);

/// Workers of one served set are interchangeable for a request: same weights, tokenizer and template.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServedSet {
    /// Of the weights.
    pub model: Digest,
    /// Of the tokenizer.
    pub tokenizer: Digest,
    /// Of the chat template.
    pub template: Digest,
}

/// What a worker does for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Prefills and decodes.
    pub aggregated: bool,
    /// Prefills for decode workers.
    pub prefill: bool,
    /// Decodes.
    pub decode: bool,
}

impl Roles {
    /// Whether it can lead a request.
    pub fn leads(self) -> bool {
        self.aggregated || self.decode
    }

    /// Names, for people.
    pub fn names(self) -> Vec<&'static str> {
        [("aggregated", self.aggregated), ("prefill", self.prefill), ("decode", self.decode)]
            .into_iter()
            .filter_map(|(name, has)| has.then_some(name))
            .collect()
    }
}

/// Limits that a card names; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests that run at once.
    pub max_running: u32,
    /// Requests that wait.
    pub max_waiting: u32,
    /// Token budget of one pass.
    pub max_batched_tokens: u32,
}

/// Capability of an engine behind an adapter that publishes no KV events.
const KV_EVENTS_NONE: &str = "kv-events-none";

/// One rank of one worker instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Names it.
    pub rank: WorkerRank,
    /// Its gRPC address.
    pub address: Arc<str>,
    /// Between starting and gone.
    pub status: Status,
    /// Deployment it belongs to.
    pub namespace: Arc<str>,
    /// Name that requests use.
    pub served_name: Arc<str>,
    /// What it serves.
    pub set: ServedSet,
    /// What it does.
    pub roles: Roles,
    /// Kind of engine.
    pub engine: Arc<str>,
    /// For constraints.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Longest sequence.
    pub context_length: Tokens,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks of its pool.
    pub kv_blocks: Blocks,
    /// Deployment revision.
    pub spec_hash: Arc<str>,
    /// Features by name.
    pub capabilities: Arc<BTreeSet<String>>,
    /// Pools exchange KV only at equal keys.
    pub compat_key: Digest,
    /// Scheme of its block hashes.
    pub hash_scheme: Arc<str>,
    /// What it takes at most.
    pub limits: Limits,
    /// Share of load relative to other workers; positive.
    pub weight: f64,
    /// Step times, from its card.
    pub prior: StepPrior,
    /// Step times as measured on workers of its type.
    pub fit: StepFit,
}

impl Worker {
    /// Tokens that its pool holds.
    pub fn capacity(&self) -> Tokens {
        self.block_size.tokens(self.kv_blocks)
    }

    /// Whether it says which blocks it has.
    pub fn tells_blocks(&self) -> bool {
        !self.capabilities.contains(KV_EVENTS_NONE)
    }

    /// Its step times.
    pub fn step_cost(&self) -> StepCost {
        StepCost::new(self.prior, self.limits.max_batched_tokens).fitted(self.fit, self.capacity())
    }
}
