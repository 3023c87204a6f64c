//! The scheduler's bounds and targets.

use std::time::Duration;

use crate::domain::prefix_cache::Eviction;
use crate::domain::step_model::StepModelConfig;

/// Bounds and targets of a [`Scheduler`](super::Scheduler).
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    /// Blocks of the KV pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Which cached block goes first when a block is needed.
    pub eviction: Eviction,
    /// Longest sequence in tokens; what the pool can hold at most is a limit as well.
    pub context_length: usize,
    /// Most sequences admitted at once.
    pub max_running: usize,
    /// Most new requests waiting; the next is refused. Of migrated ones, whose clients have seen tokens already, as many may wait as may run.
    pub max_waiting: usize,
    /// After so many migrated sequences in a row a new one is admitted, if one waits: the streams of a lost worker must not stop all others.
    pub migrated_in_a_row: usize,
    /// Most tokens in one step; never below `max_running`, so that every sequence can decode in each step.
    pub max_batched_tokens: usize,
    /// Waiting this long outweighs one priority class.
    pub ageing: Duration,
    /// Part of the pool that computed, ungranted prompts of sources may hold.
    pub source_fraction: f64,
    /// Part of the pool that may be granted to landing transfers and not yet landed.
    pub grant_fraction: f64,
    /// Smallest landing window in tokens, where the transfer and the budget allow it: a prefill chunk.
    pub min_window_tokens: usize,
    /// Ended reservations are remembered this long...
    pub ended_memory: Duration,
    /// ...and at most this many of them.
    pub max_ended: usize,
    /// Step model and step time target.
    pub step: StepModelConfig,
    /// KV event batching.
    pub events: crate::domain::kv_events::KvEventsConfig,
}

impl SchedulerConfig {
    /// The defaults for a pool of `blocks` blocks of `block_size` tokens and sequences of
    /// `context_length` tokens.
    pub fn new(blocks: usize, block_size: usize, context_length: usize) -> Self {
        Self {
            blocks,
            block_size,
            eviction: Eviction::default(),
            context_length,
            max_running: 256,
            max_waiting: 256,
            migrated_in_a_row: 4,
            max_batched_tokens: 8192,
            ageing: Duration::from_secs(10),
            source_fraction: 0.5,
            grant_fraction: 0.25,
            min_window_tokens: 512,
            ended_memory: Duration::from_secs(30),
            max_ended: 65_536,
            step: StepModelConfig::default(),
            events: crate::domain::kv_events::KvEventsConfig::default(),
        }
    }
}
