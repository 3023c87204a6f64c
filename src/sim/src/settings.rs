//! What is simulated.

use std::fmt;
use std::time::Duration;

use armature_router::config::PolicyConfig;
use armature_worker::domain::prefix_cache::Eviction;
use armature_worker::engine::sim::{Mode, SimConfig};

/// Which workers there are. They are numbered from 0; of two pools the prefill workers come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pools {
    /// Workers that prefill and decode.
    Aggregated(usize),
    /// Workers that prefill for others that decode.
    Disaggregated {
        /// How many prefill.
        prefill: usize,
        /// How many decode.
        decode: usize,
    },
}

impl Pools {
    /// Workers in all.
    pub fn workers(self) -> usize {
        match self {
            Self::Aggregated(workers) => workers,
            Self::Disaggregated { prefill, decode } => prefill + decode,
        }
    }
}

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregated(workers) => write!(f, "{workers}"),
            Self::Disaggregated { prefill, decode } => write!(f, "{prefill}P+{decode}D"),
        }
    }
}

/// A worker that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// When.
    pub at: Duration,
    /// Which, from 0.
    pub worker: usize,
}

/// The machine that each worker is: the timing model, and the scheduler's bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// How long passes take; its block size is that of pools and hashes.
    pub timing: SimConfig,
    /// Blocks of the KV pool.
    pub blocks: usize,
    /// Which cached block goes first.
    pub eviction: Eviction,
    /// Most sequences at once.
    pub max_running: usize,
    /// Most tokens in a pass.
    pub max_batched_tokens: usize,
    /// How long a pass with prefill in it should take; `None`: passes are filled up to `max_batched_tokens`.
    pub step_target: Option<Duration>,
    /// Time to move the KV of a token from a prefill worker.
    pub transfer_per_token: Duration,
}

impl Default for Machine {
    /// An 8B model on one H100 under a vLLM-like scheduler: a million tokens of KV, 8,192 tokens and 256 sequences in a pass.
    fn default() -> Self {
        Self {
            timing: SimConfig { mode: Mode::Pass, block_size: 64, ..SimConfig::default() },
            blocks: 16_384,
            eviction: Eviction::TwoSegment,
            max_running: 256,
            max_batched_tokens: 8192,
            step_target: None,
            transfer_per_token: Duration::from_micros(1),
        }
    }
}

/// One run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The workers.
    pub pools: Pools,
    /// What each of them is.
    pub machine: Machine,
    /// How the router chooses.
    pub policy: PolicyConfig,
    /// Breaks ties, and keys the router's index.
    pub seed: u64,
    /// How late KV events reach the router.
    pub event_delay: Duration,
    /// Least time between two load reports of a worker.
    pub report_interval: Duration,
    /// Workers that are lost.
    pub kills: Vec<Kill>,
    /// What a good answer is.
    pub slo: Slo,
}

/// What a good answer is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// Longest time to the first token.
    pub ttft: Duration,
    /// Longest mean time between tokens.
    pub itl: Duration,
}

impl Default for Slo {
    fn default() -> Self {
        Self { ttft: Duration::from_millis(500), itl: Duration::from_millis(50) }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            pools: Pools::Aggregated(8),
            machine: Machine::default(),
            policy: PolicyConfig::default(),
            seed: 1,
            event_delay: Duration::ZERO,
            report_interval: Duration::from_millis(
                armature_router::config::FeedConfig::default().report_interval_ms,
            ),
            kills: Vec::new(),
            slo: Slo::default(),
        }
    }
}

/// A setting that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct InvalidSettings {
    /// Which.
    pub setting: &'static str,
    /// What is wrong.
    pub problem: String,
}

impl Settings {
    /// Checks what types do not.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn validate(&self) -> Result<(), InvalidSettings> {
        let invalid = |setting, problem: String| Err(InvalidSettings { setting, problem });
        let leads = match self.pools {
            Pools::Aggregated(workers) => workers,
            Pools::Disaggregated { prefill: 0, .. } => 0,
            Pools::Disaggregated { decode, .. } => decode,
        };
        if leads == 0 || self.pools.workers() > MAX_WORKERS {
            return invalid("workers", format!("{}; each pool has 1 to {MAX_WORKERS}", self.pools));
        }
        if let Err(error) = self.machine.timing.validate() {
            return invalid("timing", error.to_string());
        }
        if self.machine.blocks == 0 || u32::try_from(self.machine.blocks).is_err() {
            return invalid("blocks", format!("{}; a pool has 1 to {}", self.machine.blocks, u32::MAX));
        }
        if let Some(kill) = self.kills.iter().find(|kill| kill.worker >= self.pools.workers()) {
            return invalid("kill", format!("worker {} of {}", kill.worker, self.pools.workers()));
        }
        Ok(())
    }
}

/// Workers whose blocks a router's index can tell apart.
pub const MAX_WORKERS: usize = 16_384;
