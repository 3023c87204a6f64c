//! The ranks whose events the router wants, between the feeds that know the workers and the reader of Redis.
//!
//! A feed joins with each of its ranks and learns whether the worker itself is to be asked; the reader looks up the ranks and tells.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use armature_contracts::ids::WorkerRank;
use tokio::sync::{Notify, watch};

use crate::adapters::worker_messages::BlockNaming;

/// The present ranks. As large as the membership.
#[derive(Debug, Default)]
pub struct Directory {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    joined: u64,
    ranks: HashMap<WorkerRank, Joined>,
}

#[derive(Debug)]
struct Joined {
    token: u64,
    naming: BlockNaming,
    asked: watch::Sender<bool>,
}

/// A rank's stay in the directory; it ends when this is dropped.
#[derive(Debug)]
pub struct Stay {
    directory: Arc<Directory>,
    rank: WorkerRank,
    token: u64,
    asked: watch::Receiver<bool>,
}

impl Directory {
    /// Adds a rank. Its worker is not asked at first.
    pub fn join(self: &Arc<Self>, rank: WorkerRank, naming: BlockNaming) -> Stay {
        let (asked, receiver) = watch::channel(false);
        let token = {
            let mut state = self.lock();
            state.joined += 1;
            let token = state.joined;
            state.ranks.insert(rank, Joined { token, naming, asked });
            token
        };
        self.changed.notify_one();
        Stay { directory: Arc::clone(self), rank, token, asked: receiver }
    }

    /// Every rank, with a token that differs between two stays.
    pub fn ranks(&self) -> BTreeMap<WorkerRank, u64> {
        self.lock().ranks.iter().map(|(rank, joined)| (*rank, joined.token)).collect()
    }

    /// How a rank names its blocks.
    pub fn naming(&self, rank: WorkerRank) -> Option<BlockNaming> {
        self.lock().ranks.get(&rank).map(|joined| joined.naming.clone())
    }

    /// Says whether a rank's worker is to be asked itself.
    pub fn ask(&self, rank: WorkerRank, asked: bool) {
        if let Some(joined) = self.lock().ranks.get(&rank) {
            joined.asked.send_replace(asked);
        }
    }

    /// Waits until ranks have come or gone.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stay {
    /// Waits until the worker is to be asked, or no longer.
    pub async fn asked(&mut self, wanted: bool) {
        if self.asked.wait_for(|asked| *asked == wanted).await.is_err() {
            // Another stay has taken its place; this one is about to be dropped.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut state = self.directory.lock();
        if state.ranks.get(&self.rank).is_some_and(|joined| joined.token == self.token) {
            state.ranks.remove(&self.rank);
        }
        drop(state);
        self.directory.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;
    use armature_contracts::kv_hash::HASH_SCHEME;

    use crate::domain::units::BlockSize;

    #[tokio::test(start_paused = true)]
    async fn a_stay_that_ends_late_leaves_the_next_one_alone() {
        let directory = Arc::new(Directory::default());
        let rank = WorkerRank::first(InstanceId(1));
        let naming = BlockNaming { scheme: HASH_SCHEME.into(), block_size: BlockSize(16) };
        let first = directory.join(rank, naming.clone());
        let mut second = directory.join(rank, naming);
        drop(first);
        assert_eq!(directory.ranks().len(), 1);
        directory.ask(rank, true);
        second.asked(true).await;
        drop(second);
        assert!(directory.ranks().is_empty());
    }
}
