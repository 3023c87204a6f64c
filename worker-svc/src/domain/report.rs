//! The worker's load, as routers are told.

use std::time::Duration;

use crate::domain::ids::ReservationKey;
use crate::domain::step_model::StepCoefficients;

/// State of a reservation at this worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settlement {
    /// Taken: the report counts it as running or waiting.
    Admitted,
    /// Not taken.
    Refused,
    /// Ended, in whatever way.
    Finished,
}

/// What a subscriber has been told of settlements; comes with a report and goes into the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SettledCursor(pub(crate) u64);

/// A load report.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadReport {
    /// Grows by one with each report of this incarnation.
    pub report_seq: u64,
    /// Sequences admitted and not ended.
    pub running: usize,
    /// Requests waiting, preempted ones included.
    pub waiting: usize,
    /// Prompt tokens to compute here and not yet computed: of waiting requests beyond the prefix
    /// that was cached when they came, and the rest of running chunks.
    pub uncomputed_prefill_tokens: u64,
    /// Blocks held by requests, each counted once.
    pub blocks_active: usize,
    /// Blocks of the prefix cache that no request holds.
    pub blocks_cached: usize,
    /// Blocks with nothing in them.
    pub blocks_free: usize,
    /// Blocks of broken transfers that may still be written.
    pub blocks_quarantined: usize,
    /// Blocks promised to admitted requests and not yet allocated; part of cached and free.
    pub blocks_promised: usize,
    /// Time since the last use of the block that is evicted next; `None` with nothing to evict.
    pub next_victim_age: Option<Duration>,
    /// The fitted step model.
    pub step: StepCoefficients,
    /// Reservations that changed since the cursor, in order; all remembered ones without a cursor.
    pub settled: Vec<(ReservationKey, Settlement)>,
    /// Give it to the next report for this subscriber.
    pub cursor: SettledCursor,
}
