//! The load of a worker: `load(w) = its last report + this router's reservations that no report has settled`.

use std::time::Duration;

use super::reservations::Pending;
use super::step_cost::StepCost;
use super::units::{Blocks, Micros, Millis, Time, Tokens};
use super::worker::Worker;

/// What a worker says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Report {
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Prompt tokens not yet computed, of both.
    pub uncomputed: Tokens,
    /// Blocks that requests hold, each counted once.
    pub active: Blocks,
    /// Evictable blocks.
    pub cached: Blocks,
    /// Free blocks.
    pub free: Blocks,
    /// Time since last use of the block that would be evicted next; none when nothing is cached.
    pub victim_age: Option<Duration>,
    /// Whether it says that it drains.
    pub draining: bool,
    /// Number of its last batch of KV events; 0 when it does not say.
    pub kv_batch: u64,
    /// When it came.
    pub received: Time,
}

/// Effective load of a worker at a decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Whether there is a report.
    pub reported: bool,
    /// Requests running, waiting, and unsettled.
    pub requests: u32,
    /// Prompt tokens that the report calls uncomputed.
    pub uncomputed: Tokens,
    /// Booked prefill work of unsettled reservations.
    pub pending: Micros,
    /// Blocks held, those of unsettled reservations included.
    pub active: u64,
    /// Whether more than 2 % of the pool is free: taking a block evicts nobody then.
    pub roomy: bool,
    /// Age of the next victim.
    pub victim_age: Option<Duration>,
}

impl Load {
    /// Of a worker by its last report, if there is one, and its unsettled reservations.
    pub fn of(worker: &Worker, report: Option<&Report>, pending: Pending) -> Self {
        let empty = Report { free: worker.kv_blocks, ..Report::default() };
        let report_or_empty = report.unwrap_or(&empty);
        Self {
            reported: report.is_some(),
            requests: report_or_empty
                .running
                .saturating_add(report_or_empty.waiting)
                .saturating_add(pending.requests),
            uncomputed: report_or_empty.uncomputed,
            pending: pending.work,
            active: u64::from(report_or_empty.active.0) + pending.blocks,
            roomy: u64::from(report_or_empty.free.0) * 50 > u64::from(worker.kv_blocks.0),
            victim_age: report_or_empty.victim_age,
        }
    }

    /// Q: time until the worker has computed what it has been given, `S(uncomputed) + booked work`.
    pub fn queue(&self, cost: &StepCost) -> Millis {
        Millis(cost.service(self.uncomputed).0 + Millis::from(self.pending).0)
    }

    /// l: blocks held over capacity.
    pub fn fill(&self, worker: &Worker) -> f64 {
        self.active as f64 / f64::from(worker.kv_blocks.0.max(1))
    }

    /// Whether the worker would refuse one more request: it runs and queues all it may, which is as many as it runs more where that
    /// was `migrated`. Unknown limits are never reached.
    pub fn full(&self, worker: &Worker, migrated: bool) -> bool {
        let migrants = if migrated { worker.limits.max_running } else { 0 };
        let limit =
            worker.limits.max_running.saturating_add(worker.limits.max_waiting).saturating_add(migrants);
        worker.limits.max_running > 0 && self.requests >= limit
    }
}
