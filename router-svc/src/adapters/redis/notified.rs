//! Ranks named on the namespace's channel and not read since. They are taken off the connection at once, so that nothing piles up behind a
//! slow read.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use armature_contracts::ids::WorkerRank;
use armature_kv_redis::Connector;
use armature_kv_redis::keys::Notice;
use futures_util::StreamExt as _;
use tokio::sync::Notify;

/// Ranks remembered; beyond them the next sweep finds what is new.
const MOST: usize = 65_536;
/// Pause before the channel is listened to again.
const PAUSE: Duration = Duration::from_secs(1);

/// The set, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Notified {
    ranks: Mutex<BTreeSet<WorkerRank>>,
    wake: Notify,
}

impl Notified {
    /// Listens for ever.
    pub(super) async fn listen<C: Connector>(self: Arc<Self>, redis: Arc<C>, channel: String) {
        loop {
            match redis.listen(&channel).await {
                Ok(mut notices) => {
                    while let Some(text) = notices.next().await {
                        self.add(&text);
                    }
                    tracing::debug!(channel, "the channel of KV events is gone, listening again");
                }
                Err(error) => tracing::debug!(channel, %error, "cannot listen for KV events"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn add(&self, text: &[u8]) {
        let Some(Notice(rank)) = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()) else {
            return;
        };
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        if ranks.len() < MOST {
            ranks.insert(rank);
        }
        drop(ranks);
        self.wake.notify_one();
    }

    /// What was named since the last call.
    pub(super) fn take(&self) -> BTreeSet<WorkerRank> {
        std::mem::take(&mut *self.ranks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something is named.
    pub(super) async fn named(&self) {
        self.wake.notified().await;
    }
}
