//! A request as the scheduler sees it, and the ways it can be refused and can end.

use std::sync::Arc;

use crate::domain::ids::ReservationKey;
use crate::domain::time::Time;

/// Whose KV a cached block is: compared in full before any block is reused, so that equal hashes
/// never mix models, adapters or tenants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheRoot {
    /// Digest of the weights.
    pub model_digest: Vec<u8>,
    /// Digest of the adapter; empty without one.
    pub adapter_digest: Vec<u8>,
    /// The authenticated tenant.
    pub tenant: String,
    /// Refines inside a tenant; may be empty.
    pub cache_salt: String,
}

/// Urgency class: higher goes first, 0 is normal. Waiting ages a request: each
/// [`SchedulerConfig::ageing`](crate::domain::scheduler::SchedulerConfig::ageing) of it outweighs one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Priority(pub i8);

/// When a choice stops by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRule {
    /// Most tokens to generate, those of earlier workers included; at least 1.
    pub max_tokens: u32,
    /// Stop tokens do not end a choice with fewer tokens than this.
    pub min_tokens: u32,
    /// Tokens that end a choice; the model's own end tokens are merged in by the caller.
    pub stop_token_ids: Arc<[u32]>,
}

/// Where the KV of the prompt comes from, or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Prefill and decode here.
    Local,
    /// Decode here; the KV of the prompt beyond the cached prefix comes from a prefill worker.
    Landing,
    /// Prefill here, sample the first token of each choice, and hold the KV for a decode worker.
    Source {
        /// First token whose KV the decode worker lacks.
        from_token: usize,
    },
}

/// One choice of a request, with the tokens that earlier workers generated for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumedChoice {
    /// The choice's index in the client's answer; kept for ever, because sampling depends on it.
    pub index: u32,
    /// Tokens generated before: history for sampling and limits, computed with the prompt, never
    /// emitted again. Empty for a fresh choice.
    pub generated: Vec<u32>,
}

/// A request for the scheduler.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The reservation it settles.
    pub reservation: ReservationKey,
    /// What is asked.
    pub kind: RequestKind,
    /// Prompt tokens; at least one.
    pub prompt: Arc<[u32]>,
    /// The choices, at least one, with distinct indices. `Landing` and `Source` take generated
    /// tokens only with a single choice.
    pub choices: Vec<ResumedChoice>,
    /// Whose KV may be reused and is left behind.
    pub root: Arc<CacheRoot>,
    /// Stop rule of every choice.
    pub stop: StopRule,
    /// Urgency class.
    pub priority: Priority,
    /// A worker had taken it, and gave it up or was lost: it waits before new requests, and is paced.
    pub migrated: bool,
    /// When the client stops waiting. A source that has started is ended by its driver instead.
    pub deadline: Option<Time>,
}

impl Submission {
    /// `n` fresh choices with indices from 0.
    pub fn fresh_choices(n: u32) -> Vec<ResumedChoice> {
        (0..n).map(|index| ResumedChoice { index, generated: Vec::new() }).collect()
    }
}

/// Why a request was not taken. It left nothing behind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The waiting queue is full.
    #[error("waiting queue is full ({limit} requests)")]
    QueueFull {
        /// The queue's bound.
        limit: usize,
    },
    /// The worker is shutting down.
    #[error("worker is draining")]
    Draining,
    /// Computed KV that nobody has made room for holds too much of the pool.
    #[error("{pinned} blocks of computed prompts wait for a decode worker, {limit} may")]
    PrefillBackpressure {
        /// Blocks held.
        pinned: usize,
        /// The bound.
        limit: usize,
    },
    /// The engine behind this worker does not answer at present.
    #[error("the engine behind this worker does not answer")]
    EngineAway,
    /// A parameter that the engine behind this worker does not have.
    #[error(transparent)]
    Unsupported(#[from] crate::domain::openai::ask::Unsupported),
    /// It was meant for an incarnation that has ended.
    #[error("the incarnation that was asked for has ended")]
    Fenced,
    /// A request with this reservation id and attempt was here before.
    #[error("reservation was submitted before")]
    Duplicate,
    /// Prompt and generated tokens leave no room for another token.
    #[error("{tokens} tokens do not fit a context of {limit}")]
    ContextExceeded {
        /// Tokens of the longest choice.
        tokens: usize,
        /// Longest sequence this worker can hold.
        limit: usize,
    },
    /// More choices than this worker runs at once.
    #[error("{choices} choices are more than {limit}")]
    TooManyChoices {
        /// Choices asked for.
        choices: usize,
        /// Most sequences at once.
        limit: usize,
    },
    /// A request that contradicts itself.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It sampled this end or stop token.
    Stop(u32),
    /// It reached `max_tokens` or the context's end.
    Length,
    /// It must go on at another worker.
    Migrate,
    /// The client does not want it any more.
    Cancelled,
    /// The request's deadline passed.
    Deadline,
    /// Its token could not be sampled.
    Error,
}

/// Why a whole request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The engine failed while it computed this request.
    #[error("engine failed: {0}")]
    Engine(String),
    /// The hand-off failed and a local prefill was not allowed.
    #[error("prefill lost: {0}")]
    PrefillLost(String),
}

/// What a request used, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt as the client counts them.
    pub prompt_tokens: u64,
    /// Prompt tokens whose KV was in this worker's cache at the first admission.
    pub cached: u64,
    /// Prompt tokens whose KV came from a prefill worker.
    pub transferred: u64,
    /// Tokens computed by prefill here, recomputation after a preemption included.
    pub computed: u64,
    /// Tokens generated here, over all choices; tokens of a resumed choice are not counted again.
    pub generated: u64,
}
