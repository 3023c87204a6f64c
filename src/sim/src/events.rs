//! What will happen, by time; of one time what was planned first comes first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::kv_events::KvBatch;

/// Something that will happen.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A worker's pass ends.
    PassEnds { worker: usize },
    /// A worker reports its load.
    Report { worker: usize },
    /// A worker reports its load if it has not done so for a while.
    Heartbeat { worker: usize },
    /// KV events reach the router.
    Batch { worker: usize, batch: Arc<KvBatch> },
    /// The oldest window of a hand-off has landed, if it is still this transfer.
    Landed { flight: u64, transfer: u64 },
    /// A request that found no worker tries again.
    Retry { flight: u64 },
    /// A worker is lost.
    Kill { worker: usize },
    /// The router's index does what it has put off.
    Tidy,
}

impl Event {
    /// Whether it comes again and again, whatever else happens.
    fn is_upkeep(&self) -> bool {
        matches!(self, Self::Heartbeat { .. } | Self::Tidy)
    }
}

/// The events of a simulation.
#[derive(Debug, Default)]
pub(crate) struct Events {
    planned: BTreeMap<(Duration, u64), Event>,
    planned_ever: u64,
    /// How many of them are upkeep.
    upkeep: usize,
}

impl Events {
    pub(crate) fn plan(&mut self, at: Duration, event: Event) {
        self.planned_ever += 1;
        self.upkeep += usize::from(event.is_upkeep());
        self.planned.insert((at, self.planned_ever), event);
    }

    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.planned.first_key_value().map(|((at, _), _)| *at)
    }

    /// Whether nothing but upkeep will happen.
    pub(crate) fn is_only_upkeep(&self) -> bool {
        self.planned.len() == self.upkeep
    }

    /// The next one, if it is due.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<Event> {
        let first = self.planned.first_entry()?;
        let event = (first.key().0 <= now).then(|| first.remove());
        self.upkeep -= usize::from(event.as_ref().is_some_and(Event::is_upkeep));
        event
    }
}
