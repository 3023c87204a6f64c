//! Why a request goes nowhere.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

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
    /// The policy takes only pinned workers, and the request pins none.
    #[error("the policy \"direct\" needs a pinned decode worker")]
    PinMissing,
    /// The pinned worker cannot take it.
    #[error("worker {rank} is {why}")]
    NotEligible {
        /// The pinned one.
        rank: WorkerRank,
        /// Why not.
        why: &'static str,
    },
}
