//! The one order of requests: who is admitted first, and who is preempted last. Who has migrated is admitted before who is new.

use std::time::Duration;

use crate::domain::request::Priority;
use crate::domain::time::Time;

/// A sequence's place, smaller first: `arrival time - priority * ageing`, then arrival, then choice.
///
/// Inside a class this is first in, first out. Between classes it is ageing: a request yields only to
/// requests of a higher class that arrive within `ageing` per class of difference, so that none starves.
/// The sequence with the smallest rank is never preempted for another, so that one always gets on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    virtual_arrival: i128,
    arrival: u64,
    choice: u32,
    /// Decides nothing here: ranks differ before it.
    migrated: bool,
}

impl Rank {
    pub(super) fn new(
        arrived: Time,
        arrival: u64,
        priority: Priority,
        ageing: Duration,
        migrated: bool,
    ) -> Self {
        let shift = i128::from(priority.0) * ageing.as_nanos() as i128;
        Self { virtual_arrival: arrived.0.as_nanos() as i128 - shift, arrival, choice: 0, migrated }
    }

    /// Where it waits.
    pub(super) fn place(self) -> Place {
        Place { is_new: !self.migrated, rank: self }
    }

    /// Whether its request came from another worker.
    pub(super) fn is_migrated(self) -> bool {
        self.migrated
    }

    pub(super) fn of_choice(self, choice: u32) -> Self {
        Self { choice, ..self }
    }
}

/// A sequence's place in the waiting queue, smaller first: what has migrated before what is new, each by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    is_new: bool,
    rank: Rank,
}

impl Place {
    /// Not after the place of any new request, and after those of all migrated ones.
    pub(super) const NEW: Self = Self {
        is_new: true,
        rank: Rank { virtual_arrival: i128::MIN, arrival: 0, choice: 0, migrated: false },
    };
}
