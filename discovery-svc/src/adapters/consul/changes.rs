//! What a replica is told: the changes of its store, and when Consul went out of sight and came back.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};

use super::link::{self, Link};
use crate::adapters::memory::Memory;
use crate::domain::store::Change;
use crate::ports::Backend as _;

struct Reader {
    memory: Memory,
    link: Arc<Link>,
    turns: link::Changes,
    changes: BoxStream<'static, Change>,
    /// Which time it came in sight, while it is.
    sight: Option<u64>,
    told: VecDeque<Change>,
}

impl Reader {
    async fn open(memory: Memory, link: Arc<Link>) -> Self {
        let mut turns = link.subscribe();
        while link.in_sight().is_none() && !link.is_away() {
            turns.changed().await;
        }
        let sight = link.in_sight().map(link::Occasion::generation);
        let mut changes = memory.changes();
        let mut told = VecDeque::new();
        if sight.is_none() {
            // The snapshot at its start says nothing: nothing has been read yet.
            changes.next().await;
            told.push_back(Change::Unreachable);
        }
        Self { memory, link, turns, changes, sight, told }
    }

    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.told.pop_front() {
                return change;
            }
            let sight = self.link.in_sight().map(link::Occasion::generation);
            if sight != self.sight {
                if self.sight.is_some() {
                    self.told.push_back(Change::Unreachable);
                }
                if sight.is_some() {
                    // Begins with a snapshot.
                    self.changes = self.memory.changes();
                }
                self.sight = sight;
                continue;
            }
            tokio::select! {
                () = self.turns.changed() => {}
                Some(change) = self.changes.next() => {
                    if sight.is_none() && matches!(change, Change::Snapshot { .. }) {
                        // The reader was too slow; that is no news of Consul.
                        self.told.push_back(Change::Unreachable);
                    }
                    return change;
                }
            }
        }
    }
}

/// Begins with a snapshot, or with [`Change::Unreachable`] when Consul is not there; never ends.
pub(super) fn of(memory: Memory, link: Arc<Link>) -> BoxStream<'static, Change> {
    let told = |mut reader: Reader| async move {
        let change = reader.next().await;
        Some((change, reader))
    };
    Reader::open(memory, link).into_stream().flat_map(move |reader| stream::unfold(reader, told)).boxed()
}
