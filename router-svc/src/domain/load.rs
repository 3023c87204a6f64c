//! The load of a worker: `load(w) = its last report + this router's reservations that no report has settled`.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::InstanceId;

use super::fit::StepModel;
use super::reservations::Pending;
use super::step_cost::StepCost;
use super::units::{Blocks, Micros, Millis, Time, Tokens};
use super::worker::{Limits, Worker};

/// A worker that finishes a request has another at hand, and one more for the step after it.
const LEAST_QUEUE: u32 = 2;

/// A worker reports at least once a second: one from which nothing has come for so long is overdue.
const OVERDUE: Duration = Duration::from_secs(2);
/// Silence costs no more than this: the stream is broken then, and opened again.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// What is left of reported work however long ago the report was: that it is done would have been reported.
const LEFT: f64 = 0.05;

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// Its measured step times.
    pub step_model: Option<StepModel>,
    /// Instances to which it has warm transfer connections; empty when it does not say.
    pub warm_peers: Arc<[InstanceId]>,
    /// When it came.
    pub received: Time,
}

/// Effective load of a worker at a decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Whether there is a report.
    pub reported: bool,
    /// Since the report.
    pub age: Duration,
    /// Requests running, waiting, and unsettled.
    pub requests: u32,
    /// Of those, waiting.
    pub waiting: u32,
    /// Of those, unsettled.
    pub unsettled: u32,
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
    pub fn of(worker: &Worker, report: Option<&Report>, pending: Pending, now: Time) -> Self {
        let empty = Report { free: worker.kv_blocks, ..Report::default() };
        let report_or_empty = report.unwrap_or(&empty);
        Self {
            reported: report.is_some(),
            age: report.map_or(Duration::ZERO, |report| now.since(report.received)),
            requests: report_or_empty
                .running
                .saturating_add(report_or_empty.waiting)
                .saturating_add(pending.requests),
            waiting: report_or_empty.waiting,
            unsettled: pending.requests,
            uncomputed: report_or_empty.uncomputed,
            pending: pending.work,
            active: u64::from(report_or_empty.active.0) + pending.blocks,
            roomy: u64::from(report_or_empty.free.0) * 50 > u64::from(worker.kv_blocks.0),
            victim_age: report_or_empty.victim_age,
        }
    }

    /// Q: time until the worker has computed what it has been given: what was uncomputed when it reported, less the time since then, and
    /// booked work. At least 5 % of the former stay, and once the report is overdue nothing more is taken off.
    pub fn queue(&self, cost: &StepCost) -> Millis {
        let reported = cost.service(self.uncomputed).0;
        let passed = Millis::from(self.age.min(OVERDUE)).0;
        Millis((reported - passed).max(LEFT * reported) + Millis::from(self.pending).0)
    }

    /// For how long a report is overdue, at most a minute: so much may have come to the worker, or been left undone, that is not known.
    pub fn overdue(&self) -> Millis {
        Millis::from(self.age.saturating_sub(OVERDUE).min(LONGEST_SILENCE))
    }

    /// l: blocks held over capacity.
    pub fn fill(&self, worker: &Worker) -> f64 {
        self.active as f64 / f64::from(worker.kv_blocks.0.max(1))
    }

    /// Whether the worker would refuse one more request: it runs and queues all it may, or queues all it may, for what is sent to it waits
    /// until its next step. It may queue as many as it runs more where that one was `migrated`. Unknown limits are never reached.
    pub fn full(&self, worker: &Worker, migrated: bool) -> bool {
        let Limits { max_running, max_waiting, .. } = worker.limits;
        let queue = max_waiting.saturating_add(if migrated { max_running } else { 0 });
        let runs_all = max_running > 0 && self.requests >= max_running.saturating_add(queue);
        let queues_all = max_running > 0 && max_waiting > 0 && self.queued() >= queue;
        runs_all || queues_all
    }

    /// Whether so much is queued that one more request could not begin soon: at least two, and of them either two that the worker itself says
    /// that it cannot begin, or more work than `depth`.
    pub fn deep(&self, cost: &StepCost, depth: Millis) -> bool {
        self.queued() >= LEAST_QUEUE && (self.waiting >= LEAST_QUEUE || self.queue(cost) >= depth)
    }

    fn queued(&self) -> u32 {
        self.waiting.saturating_add(self.unsettled)
    }
}

#[cfg(test)]
mod tests {
    use super::super::step_cost::StepPrior;
    use super::*;

    #[test]
    fn reported_work_is_done_while_time_passes_until_the_report_is_overdue() {
        let prior = StepPrior { prefill: [0.0, 1.0, 0.0], ..StepPrior::default() };
        let cost = StepCost::new(prior, 1 << 20);
        let of = |uncomputed, age, pending| {
            let load = Load {
                uncomputed: Tokens(uncomputed),
                age: Duration::from_millis(age),
                pending: Micros(pending),
                ..Load::default()
            };
            (load.queue(&cost).0, load.overdue().0)
        };
        assert_eq!(of(10_000, 0, 0), (10_000.0, 0.0));
        assert_eq!(of(10_000, 700, 3_000), (9_303.0, 0.0));
        // Never quite gone before the worker says so.
        assert_eq!(of(1_000, 990, 0), (50.0, 0.0));
        // A silent worker does not look idler and idler; what it may hide grows instead.
        assert_eq!(of(10_000, 2_000, 0), (8_000.0, 0.0));
        assert_eq!(of(10_000, 5_000, 0), (8_000.0, 3_000.0));
        assert_eq!(of(10_000, 1_000_000, 0), (8_000.0, 60_000.0));
    }
}
