//! The ledger of reservations: which routers' bookings this worker has taken, refused or ended.
//!
//! An ended key is remembered for a while, so that a repeat is refused and a router that
//! subscribes again learns how its bookings ended. Bounded by the requests in flight plus
//! `max_ended`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::domain::ids::ReservationKey;
use crate::domain::report::{SettledCursor, Settlement};
use crate::domain::time::Time;

#[derive(Debug, Clone, Copy)]
struct Record {
    settlement: Settlement,
    revision: u64,
}

/// All reservations in flight and those that ended lately.
#[derive(Debug)]
pub struct Reservations {
    memory: Duration,
    max_ended: usize,
    records: HashMap<ReservationKey, Record>,
    by_revision: BTreeMap<u64, ReservationKey>,
    /// Ended keys in the order of their end. A key ends once.
    ended: VecDeque<(Time, ReservationKey)>,
    revision: u64,
}

impl Reservations {
    /// An empty ledger that remembers ended keys for `memory`, at most `max_ended` of them.
    pub fn new(memory: Duration, max_ended: usize) -> Self {
        Self {
            memory,
            max_ended,
            records: HashMap::new(),
            by_revision: BTreeMap::new(),
            ended: VecDeque::new(),
            revision: 0,
        }
    }

    /// Whether the key is in flight or remembered.
    pub fn knows(&self, key: ReservationKey) -> bool {
        self.records.contains_key(&key)
    }

    /// Notes the key's new state. A key that ended keeps its end.
    pub fn settle(&mut self, key: ReservationKey, settlement: Settlement, now: Time) {
        self.forget(now);
        if let Some(old) = self.records.get(&key) {
            if old.settlement != Settlement::Admitted {
                return;
            }
            self.by_revision.remove(&old.revision);
        }
        self.revision += 1;
        self.records.insert(key, Record { settlement, revision: self.revision });
        self.by_revision.insert(self.revision, key);
        if settlement != Settlement::Admitted {
            self.ended.push_back((now, key));
            self.forget(now);
        }
    }

    /// Drops ended keys that are too old or too many.
    pub fn forget(&mut self, now: Time) {
        while let Some((at, key)) = self.ended.front().copied() {
            if self.ended.len() <= self.max_ended && now.since(at) < self.memory {
                break;
            }
            self.ended.pop_front();
            if let Some(record) = self.records.remove(&key) {
                self.by_revision.remove(&record.revision);
            }
        }
    }

    /// What changed after `cursor`, oldest first, each key with its newest state only; everything
    /// remembered without a cursor. Second: the cursor for the next call.
    pub fn settled_since(
        &self,
        cursor: Option<SettledCursor>,
    ) -> (Vec<(ReservationKey, Settlement)>, SettledCursor) {
        let from = cursor.map_or(0, |cursor| cursor.0 + 1);
        let settled = self
            .by_revision
            .range(from..)
            .filter_map(|(_, key)| self.records.get(key).map(|record| (*key, record.settlement)))
            .collect();
        (settled, SettledCursor(self.revision))
    }

    /// Keys in flight.
    pub fn in_flight(&self) -> usize {
        self.records.len() - self.ended.len()
    }
}
