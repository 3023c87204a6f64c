//! A worker: the real scheduler, passes that take the time of the model, and what it tells the router.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::RequestId;
use armature_worker::domain::kv_events::{KvBatch, KvEventsConfig};
use armature_worker::domain::report::{LoadReport, SettledCursor};
use armature_worker::domain::sampled::Sampled;
use armature_worker::domain::scheduler::{Scheduler, SchedulerConfig, StepPlan, StepResult};
use armature_worker::domain::time::Time;
use armature_worker::engine::sim::{PassLoad, pass_time};

use crate::router_side::Role;
use crate::settings::{Machine, Settings};

/// A target that fills every pass up to its token budget.
const NO_STEP_TARGET: Duration = Duration::from_secs(1_000_000_000);
/// No log lies idle so long in a simulation.
const NO_HEARTBEAT: Duration = Duration::from_secs(1_000_000_000);
/// Every batch is delivered: nobody resumes.
const RING: usize = 1;

/// What a worker has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Done {
    /// Time in passes.
    pub(crate) busy: Duration,
    pub(crate) passes: u64,
    /// Tokens computed in prefill chunks.
    pub(crate) prefill_tokens: u64,
    /// Tokens computed in decode rows.
    pub(crate) decode_tokens: u64,
}

struct Pass {
    plan: StepPlan,
    began: Duration,
}

/// A simulated worker.
pub(crate) struct SimWorker {
    pub(crate) role: Role,
    pub(crate) scheduler: Scheduler,
    pub(crate) alive: bool,
    pub(crate) done: Done,
    /// Whose the scheduler's requests are.
    pub(crate) flights: HashMap<RequestId, u64>,
    /// When the last report was made.
    pub(crate) last_report: Option<Duration>,
    pass: Option<Pass>,
    cursor: Option<SettledCursor>,
    /// When the next report may be made.
    report_from: Duration,
    /// Whether a report waits for that.
    report_waits: bool,
}

impl SimWorker {
    pub(crate) fn new(role: Role, settings: &Settings) -> Self {
        let Machine { timing, blocks, eviction, max_running, max_batched_tokens, step_target, .. } =
            &settings.machine;
        let mut config = SchedulerConfig::new(*blocks, timing.block_size, blocks * timing.block_size);
        config.eviction = *eviction;
        config.max_running = *max_running;
        config.max_batched_tokens = *max_batched_tokens;
        config.max_waiting = usize::MAX;
        config.step.target = step_target.unwrap_or(NO_STEP_TARGET);
        config.events = KvEventsConfig {
            max_delay: Duration::ZERO,
            heartbeat: NO_HEARTBEAT,
            ring: RING,
            ..KvEventsConfig::default()
        };
        Self {
            role,
            scheduler: Scheduler::new(config),
            alive: true,
            done: Done::default(),
            flights: HashMap::new(),
            last_report: None,
            pass: None,
            cursor: None,
            report_from: Duration::ZERO,
            report_waits: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pass.is_none()
    }

    /// Begins a pass, if there is something to compute. When it ends.
    pub(crate) fn begin_pass(&mut self, machine: &Machine, now: Duration) -> Option<Duration> {
        let plan = self.scheduler.plan(Time(now));
        if plan.is_empty() {
            return None;
        }
        let is_decode = |start: usize, tokens: usize| start > 0 && tokens == 1;
        let rows = plan.chunks.iter().filter(|chunk| is_decode(chunk.start, chunk.tokens.len()));
        let load = PassLoad {
            prefill_tokens: plan.work.prefill_tokens as usize,
            decode_tokens: rows.map(|chunk| chunk.start + 1).sum(),
            decode_rows: plan.work.decode_rows as usize,
            blocks: self.scheduler.blocks_active(),
        };
        self.pass = Some(Pass { plan, began: now });
        Some(now + pass_time(&machine.timing, &load, machine.blocks))
    }

    /// The pass has ended: `token` says what each sequence's request samples at a position.
    pub(crate) fn end_pass(&mut self, now: Duration, token: impl Fn(u64, u32) -> u32) {
        let Some(Pass { plan, began }) = self.pass.take() else { return };
        let elapsed = now - began;
        let mut samples = Vec::with_capacity(plan.chunks.len());
        for chunk in plan.chunks.iter().filter(|chunk| !chunk.sample_choices.is_empty()) {
            // A request that was ended meanwhile has no flight, and its samples are not looked at.
            let (Some(flight), Some(history)) =
                (self.flights.get(&chunk.request), self.scheduler.history(chunk.seq))
            else {
                continue;
            };
            let token = token(*flight, history.generated.len() as u32);
            let sampled =
                |choice: &u32| (chunk.seq, *choice, Sampled { token, logprob: 0.0, top: Vec::new() });
            samples.extend(chunk.sample_choices.iter().map(sampled));
        }
        self.done.busy += elapsed;
        self.done.passes += 1;
        self.done.prefill_tokens += plan.work.prefill_tokens;
        self.done.decode_tokens += plan.work.decode_rows;
        self.scheduler.commit(plan, StepResult { samples, elapsed, dropped: Vec::new() }, Time(now));
    }

    /// The next batch of KV events.
    pub(crate) fn next_batch(&mut self, now: Duration) -> Option<Arc<KvBatch>> {
        self.scheduler.poll_kv_events(Time(now))
    }

    /// The load has changed: a report is due now, or at the time that comes back, or waits already.
    pub(crate) fn wants_report(&mut self, now: Duration) -> Option<Duration> {
        if self.report_waits {
            return None;
        }
        self.report_waits = true;
        Some(self.report_from.max(now))
    }

    /// A report; the next one comes no earlier than `interval` after it.
    pub(crate) fn report(&mut self, interval: Duration, now: Duration) -> (LoadReport, u64) {
        self.report_waits = false;
        self.report_from = now + interval;
        self.last_report = Some(now);
        let report = self.scheduler.report(self.cursor, Time(now));
        self.cursor = Some(report.cursor);
        (report, self.scheduler.kv_events().last_batch())
    }
}
