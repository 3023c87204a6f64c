//! The scheduler: which tokens of which sequences the engine computes next, and in which blocks.
//!
//! Pure and synchronous; the driver's loop is
//! `submit / cancel / landing_* / source_*` -> [`plan`](Scheduler::plan) -> the engine's pass and
//! sampling -> [`commit`](Scheduler::commit) (or [`fail_step`](Scheduler::fail_step)) ->
//! [`take_effects`](Scheduler::take_effects). Inputs may come at any time, between plan and commit as well.
//!
//! A request is accepted by [`submit`](Scheduler::submit), admitted by `plan` when the blocks of all its
//! tokens can be promised, and ends exactly once. One order (`Rank`) decides admission, the sequence of
//! chunks in a step, and, from its end, who is preempted.
//!
//! | state of a sequence | blocks |
//! |---|---|
//! | waiting | none |
//! | landing | cached prefix held, the rest promised, then granted window by window |
//! | running | held; the rest of the prompt promised, decode blocks taken as needed, with preemption |
//! | held (source) | pinned until released |

mod admission;
mod check;
mod commit;
mod config;
mod effect;
mod ending;
mod fork;
mod landing;
mod planning;
mod rank;
mod request_state;
mod sequence;
mod source;
mod step;
mod transfer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::domain::ids::{BlockId, RequestId, SeqId, StepId};
use crate::domain::kv_events::{KvBatch, KvEvents};
use crate::domain::kv_store::KvStore;
use crate::domain::report::{LoadReport, SettledCursor};
use crate::domain::request::RequestKind;
use crate::domain::reservations::Reservations;
use crate::domain::step_model::{StepCoefficients, StepModel};
use crate::domain::time::Time;

pub use config::SchedulerConfig;
pub use effect::Effect;
pub use landing::Fallback;
pub use step::{BlockCopy, PlannedChunk, StepPlan, StepResult};
pub use transfer::{LandingError, TransferPhase};

use rank::{Place, Rank};
use request_state::Request;
use sequence::{Phase, Sequence};

/// A copy that the next plan carries out. Its source block is held until then.
#[derive(Debug)]
struct PendingCopy {
    seq: SeqId,
    copy: BlockCopy,
}

/// What the step between plan and commit uses.
#[derive(Debug)]
struct InFlight {
    id: StepId,
    seqs: BTreeSet<SeqId>,
    copies: Vec<PendingCopy>,
}

/// Tokens of a sequence, for the sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceHistory<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// Generated tokens, those of earlier workers included: the next token's position is their number.
    pub generated: &'a [u32],
}

/// The scheduler of one engine. Bounded by its configuration: requests waiting and running, blocks,
/// remembered reservations.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// Longest sequence: the context, or what the pool holds.
    context: usize,
    kv: KvStore,
    model: StepModel,
    requests: BTreeMap<RequestId, Request>,
    seqs: BTreeMap<SeqId, Sequence>,
    waiting: BTreeMap<Place, SeqId>,
    running: BTreeMap<Rank, SeqId>,
    /// Choices of running and landing sequences: each will be a sequence of its own.
    seats: usize,
    /// Migrated sequences admitted since the last new one.
    migrated_in_a_row: usize,
    copies: Vec<PendingCopy>,
    in_flight: Option<InFlight>,
    /// Transfers that have begun and lack windows, first in first out.
    grant_queue: VecDeque<RequestId>,
    /// Blocks that broken transfers may still write.
    quarantine: BTreeMap<RequestId, Vec<BlockId>>,
    /// Blocks pinned by sources that no decode worker has made room for.
    ungranted: usize,
    deadlines: BTreeSet<(Time, RequestId)>,
    reservations: Reservations,
    effects: Vec<Effect>,
    draining: bool,
    last_request: u64,
    last_seq: u64,
    last_step: u64,
    last_report: u64,
}

impl Scheduler {
    /// An idle scheduler over an empty pool. Out-of-range settings are brought into range: at least one
    /// block, one sequence, and a token per sequence plus one block in each step.
    pub fn new(mut config: SchedulerConfig) -> Self {
        config.blocks = config.blocks.max(1);
        config.block_size = config.block_size.max(1);
        config.max_running = config.max_running.max(1);
        config.migrated_in_a_row = config.migrated_in_a_row.max(1);
        config.max_batched_tokens = config.max_batched_tokens.max(config.max_running + config.block_size);
        Self {
            context: config.context_length.min(config.blocks * config.block_size),
            kv: KvStore::new(config.blocks, config.block_size, config.eviction, config.events.clone()),
            model: StepModel::new(config.step.clone()),
            requests: BTreeMap::new(),
            seqs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            seats: 0,
            migrated_in_a_row: 0,
            copies: Vec::new(),
            in_flight: None,
            grant_queue: VecDeque::new(),
            quarantine: BTreeMap::new(),
            ungranted: 0,
            deadlines: BTreeSet::new(),
            reservations: Reservations::new(config.ended_memory, config.max_ended),
            effects: Vec::new(),
            draining: false,
            last_request: 0,
            last_seq: 0,
            last_step: 0,
            last_report: 0,
            config,
        }
    }

    /// The configuration in force.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Longest sequence in tokens that this worker can hold.
    pub fn context_length(&self) -> usize {
        self.context
    }

    /// Blocks that requests hold, each once.
    pub fn blocks_active(&self) -> usize {
        self.kv.pool().active()
    }

    /// What happened since the last call, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Tokens of a sequence of the plan in flight, for its sampler.
    pub fn history(&self, seq: SeqId) -> Option<SequenceHistory<'_>> {
        self.seqs.get(&seq).map(|seq| SequenceHistory { prompt: &seq.prompt, generated: &seq.generated })
    }

    /// Whether no request is left: none waiting, running, landing or held.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// When a deadline passes or a batch of KV events is due: the latest time for the next
    /// [`plan`](Self::plan) and [`poll_kv_events`](Self::poll_kv_events) without other inputs.
    pub fn next_wakeup(&mut self) -> Time {
        let events = self.kv.events().next_due();
        self.deadlines.first().map_or(events, |(deadline, _)| events.min(*deadline))
    }

    /// The next batch of KV events that is due. Call until `None`.
    pub fn poll_kv_events(&mut self, now: Time) -> Option<Arc<KvBatch>> {
        self.kv.events().poll(now)
    }

    /// The KV event log, for snapshots and readers that resume.
    pub fn kv_events(&mut self) -> &mut KvEvents {
        self.kv.events()
    }

    /// The fitted step model's coefficients.
    pub fn step_coefficients(&self) -> StepCoefficients {
        self.model.coefficients()
    }

    /// The load now; settlements since `cursor`, or all that are remembered.
    pub fn report(&mut self, cursor: Option<SettledCursor>, now: Time) -> LoadReport {
        self.reservations.forget(now);
        self.last_report += 1;
        let (settled, cursor) = self.reservations.settled_since(cursor);
        let (mut running, mut uncomputed) = (0, 0);
        for seq in self.seqs.values() {
            match seq.phase {
                Phase::Waiting if !self.lands(seq) => {
                    uncomputed += (seq.len() - seq.expected_cached) as u64;
                }
                Phase::Running => {
                    running += 1;
                    uncomputed += if seq.decodes() { 0 } else { seq.uncomputed() as u64 };
                }
                Phase::Landing => running += 1,
                Phase::Waiting | Phase::Held | Phase::Ended => {}
            }
        }
        let pool = self.kv.pool();
        LoadReport {
            report_seq: self.last_report,
            running,
            waiting: self.waiting.len(),
            uncomputed_prefill_tokens: uncomputed,
            blocks_active: pool.active(),
            blocks_cached: pool.idle(),
            blocks_free: pool.free(),
            blocks_quarantined: pool.quarantined(),
            blocks_promised: pool.promised(),
            next_victim_age: self.kv.cache().next_victim_age(now),
            step: self.model.coefficients(),
            settled,
            cursor,
        }
    }

    /// Whether the sequence's KV comes from a prefill worker.
    fn lands(&self, seq: &Sequence) -> bool {
        self.requests.get(&seq.request).is_some_and(|request| request.kind == RequestKind::Landing)
    }
}
