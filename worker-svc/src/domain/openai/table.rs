//! The requests that an adapter has given to its engine, and the load that it reports: its own table, and what the engine has beside it.

use std::collections::HashMap;
use std::time::Duration;

use super::load::EngineLoad;
use crate::domain::ids::{RequestId, ReservationKey};
use crate::domain::report::{LoadReport, SettledCursor, Settlement};
use crate::domain::request::{Refusal, Submission};
use crate::domain::reservations::Reservations;
use crate::domain::step_model::StepCoefficients;
use crate::domain::time::Time;

/// Ended reservations are remembered this long...
const ENDED_MEMORY: Duration = Duration::from_secs(30);
/// ...and at most this many of them.
pub const MAX_ENDED: usize = 65_536;

/// Bounds of a [`Table`].
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most requests that have begun and not ended, and most that wait: their sum bounds the table.
    pub max_running: usize,
    /// See `max_running`.
    pub max_waiting: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Tokens per block, by our count.
    pub block_size: usize,
    /// Blocks of the engine's KV memory, by our count.
    pub blocks: usize,
}

#[derive(Debug)]
struct Entry {
    reservation: ReservationKey,
    /// Its choices: as many requests in the engine.
    choices: usize,
    /// Tokens of prompt and history, over all choices.
    prompt: u64,
    generated: u64,
    started: bool,
}

/// The requests in the engine.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    reservations: Reservations,
    requests: HashMap<RequestId, Entry>,
    last_request: u64,
    last_report: u64,
    draining: bool,
    away: bool,
    engine: Option<EngineLoad>,
    /// Requests of others in the engine, by its last numbers.
    foreign: u32,
}

impl Table {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            reservations: Reservations::new(ENDED_MEMORY, MAX_ENDED),
            requests: HashMap::new(),
            last_request: 0,
            last_report: 0,
            draining: false,
            away: false,
            engine: None,
            foreign: 0,
        }
    }

    /// Takes a request, or says why not; a refusal settles its reservation.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is left behind.
    pub fn submit(&mut self, submission: &Submission, now: Time) -> Result<RequestId, Refusal> {
        self.reservations.forget(now);
        let key = submission.reservation;
        if self.reservations.knows(key) {
            return Err(Refusal::Duplicate);
        }
        if let Some(refusal) = self.refusal(submission) {
            self.reservations.settle(key, Settlement::Refused, now);
            return Err(refusal);
        }
        self.reservations.settle(key, Settlement::Admitted, now);
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let prompt = submission
            .choices
            .iter()
            .map(|choice| (submission.prompt.len() + choice.generated.len()) as u64)
            .sum();
        self.requests.insert(
            id,
            Entry {
                reservation: key,
                choices: submission.choices.len(),
                prompt,
                generated: 0,
                started: false,
            },
        );
        Ok(id)
    }

    fn refusal(&self, submission: &Submission) -> Option<Refusal> {
        if self.draining {
            return Some(Refusal::Draining);
        }
        if self.away {
            return Some(Refusal::EngineAway);
        }
        let generated = submission.choices.iter().map(|choice| choice.generated.len()).max().unwrap_or(0);
        let (tokens, limit) = (submission.prompt.len() + generated, self.limits.context);
        if tokens >= limit {
            return Some(Refusal::ContextExceeded { tokens, limit });
        }
        let (choices, limit) = (submission.choices.len(), self.limits.max_running);
        if choices > limit.max(1) {
            return Some(Refusal::TooManyChoices { choices, limit });
        }
        let limit = self.limits.max_running + self.limits.max_waiting;
        (self.requests.len() >= limit).then_some(Refusal::QueueFull { limit })
    }

    /// A request that was not taken for a reason of the caller's.
    pub fn refused(&mut self, key: ReservationKey, now: Time) {
        if !self.reservations.knows(key) {
            self.reservations.settle(key, Settlement::Refused, now);
        }
    }

    /// The request of a reservation, while it is in the engine.
    pub fn find(&self, key: ReservationKey) -> Option<RequestId> {
        self.requests.iter().find(|(_, entry)| entry.reservation == key).map(|(id, _)| *id)
    }

    /// The engine has begun to answer.
    pub fn started(&mut self, id: RequestId) {
        if let Some(entry) = self.requests.get_mut(&id) {
            entry.started = true;
        }
    }

    /// The engine has generated more.
    pub fn generated(&mut self, id: RequestId, tokens: u64) {
        if let Some(entry) = self.requests.get_mut(&id) {
            entry.generated += tokens;
        }
    }

    /// The request is over.
    pub fn ended(&mut self, id: RequestId, now: Time) {
        if let Some(entry) = self.requests.remove(&id) {
            self.reservations.settle(entry.reservation, Settlement::Finished, now);
        }
    }

    /// Refuses new requests from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The engine answers, or not: meanwhile new requests are refused. True when that is news.
    pub fn set_away(&mut self, away: bool) -> bool {
        std::mem::replace(&mut self.away, away) != away
    }

    /// The engine's own numbers, as of now. What they count beyond this table is of others. True when the report changes by it.
    pub fn engine_says(&mut self, load: Option<EngineLoad>) -> bool {
        let own = self.requests.values().map(|entry| entry.choices as u32).sum();
        let foreign = load.map_or(0, |load| (load.running + load.waiting).saturating_sub(own));
        let blocks = load
            .and_then(|load| load.kv_tokens)
            .map(|tokens| tokens as usize / self.limits.block_size.max(1));
        if let Some(blocks) = blocks.filter(|blocks| *blocks > 0) {
            self.limits.blocks = blocks;
        }
        let before =
            (std::mem::replace(&mut self.foreign, foreign), std::mem::replace(&mut self.engine, load));
        before != (foreign, load)
    }

    /// Requests in the engine: this table's, and others'.
    pub fn requests(&self) -> (usize, usize) {
        (self.requests.len(), self.foreign as usize)
    }

    /// The load now; settlements since `cursor`, or all that are remembered.
    pub fn report(&mut self, cursor: Option<SettledCursor>, now: Time) -> LoadReport {
        self.reservations.forget(now);
        self.last_report += 1;
        let (settled, cursor) = self.reservations.settled_since(cursor);
        let started = self.requests.values().filter(|entry| entry.started);
        let (waiting, running): (usize, usize) =
            (self.requests.len() - started.clone().count(), started.map(|entry| entry.choices).sum());
        let block = self.limits.block_size.max(1) as u64;
        let held: u64 =
            self.requests.values().map(|entry| (entry.prompt + entry.generated).div_ceil(block)).sum();
        let of_engine =
            self.engine.and_then(|load| load.kv_used).map(|share| share * self.limits.blocks as f64);
        let blocks_active =
            (held as usize).max(of_engine.unwrap_or_default() as usize).min(self.limits.blocks);
        LoadReport {
            report_seq: self.last_report,
            running: running + self.foreign as usize,
            waiting,
            uncomputed_prefill_tokens: self
                .requests
                .values()
                .filter(|entry| !entry.started)
                .map(|entry| entry.prompt)
                .sum(),
            blocks_active,
            blocks_cached: 0,
            blocks_free: self.limits.blocks - blocks_active,
            blocks_quarantined: 0,
            blocks_promised: 0,
            next_victim_age: None,
            step: StepCoefficients { constant: 0.0, prefill_token: 0.0, attention: 0.0, decode_row: 0.0 },
            settled,
            cursor,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::domain::request::{CacheRoot, Priority, RequestKind, StopRule};

    const LIMITS: Limits =
        Limits { max_running: 1, max_waiting: 1, context: 100, block_size: 16, blocks: 10 };

    fn submission(id: u128, prompt: usize) -> Submission {
        Submission {
            reservation: ReservationKey { id, attempt: 1 },
            kind: RequestKind::Local,
            prompt: vec![1; prompt].into(),
            choices: Submission::fresh_choices(1),
            root: Arc::new(CacheRoot {
                model_digest: vec![],
                adapter_digest: vec![],
                tenant: String::new(),
                cache_salt: String::new(),
            }),
            stop: StopRule { max_tokens: 9, min_tokens: 0, stop_token_ids: Arc::from([]) },
            priority: Priority(0),
            migrated: false,
            deadline: None,
        }
    }

    #[test]
    fn a_request_is_counted_from_its_admission_to_its_end() {
        let mut table = Table::new(LIMITS);
        let id = table.submit(&submission(1, 33), Time::ZERO).unwrap();
        let report = table.report(None, Time::ZERO);
        assert_eq!((report.running, report.waiting, report.uncomputed_prefill_tokens), (0, 1, 33));
        assert_eq!((report.blocks_active, report.blocks_free), (3, 7));
        let key = ReservationKey { id: 1, attempt: 1 };
        assert_eq!(report.settled, [(key, Settlement::Admitted)]);
        assert_eq!(table.find(key), Some(id));
        table.started(id);
        table.generated(id, 20);
        let report = table.report(Some(report.cursor), Time::ZERO);
        assert_eq!((report.running, report.waiting, report.uncomputed_prefill_tokens), (1, 0, 0));
        assert_eq!((report.blocks_active, report.settled.len()), (4, 0));
        table.ended(id, Time::ZERO);
        let report = table.report(Some(report.cursor), Time::ZERO);
        assert_eq!((report.running, report.blocks_active, report.blocks_free), (0, 0, 10));
        assert_eq!(report.settled, [(key, Settlement::Finished)]);
        assert_eq!(table.submit(&submission(1, 33), Time::ZERO), Err(Refusal::Duplicate));
    }

    #[test]
    fn refusals_are_settled_and_leave_nothing() {
        let mut table = Table::new(LIMITS);
        let exceeded = Refusal::ContextExceeded { tokens: 100, limit: 100 };
        assert_eq!(table.submit(&submission(1, 100), Time::ZERO), Err(exceeded));
        table.submit(&submission(2, 1), Time::ZERO).unwrap();
        table.submit(&submission(3, 1), Time::ZERO).unwrap();
        assert_eq!(table.submit(&submission(4, 1), Time::ZERO), Err(Refusal::QueueFull { limit: 2 }));
        assert!(table.set_away(true) && !table.set_away(true));
        assert_eq!(table.submit(&submission(5, 1), Time::ZERO), Err(Refusal::EngineAway));
        table.drain();
        assert_eq!(table.submit(&submission(6, 1), Time::ZERO), Err(Refusal::Draining));
        let settled = table.report(None, Time::ZERO).settled;
        let refused = settled.iter().filter(|(_, settlement)| *settlement == Settlement::Refused);
        assert_eq!((refused.count(), table.requests()), (4, (2, 0)));
    }

    #[test]
    fn traffic_of_others_and_the_engines_own_memory_are_seen() {
        let mut table = Table::new(LIMITS);
        let id = table.submit(&submission(1, 16), Time::ZERO).unwrap();
        table.started(id);
        let load = EngineLoad { running: 3, waiting: 2, kv_used: Some(0.5), kv_tokens: Some(320) };
        assert!(table.engine_says(Some(load)));
        assert!(!table.engine_says(Some(load)));
        let report = table.report(None, Time::ZERO);
        assert_eq!((report.running, report.waiting), (5, 0), "four of others");
        assert_eq!((report.blocks_active, report.blocks_free), (10, 10), "half of 20 blocks of ours");
        assert!(table.engine_says(None));
        assert_eq!(table.report(None, Time::ZERO).running, 1);
    }
}
