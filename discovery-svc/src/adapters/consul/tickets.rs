//! Lets a caller wait until what it changed has been written, without a queue of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

/// Counts callers, and how many of them need not wait any more.
#[derive(Debug, Default)]
pub struct Tickets {
    issued: AtomicU64,
    wake: Notify,
    settled: watch::Sender<u64>,
}

impl Tickets {
    /// Waits until everything that was changed before the call has been tried.
    pub async fn settle(&self) {
        let mine = self.issued.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake.notify_one();
        // The sender lives in `self`.
        let _ = self.settled.subscribe().wait_for(|settled| *settled >= mine).await;
    }

    /// The last caller: read before what was changed.
    pub fn issued(&self) -> u64 {
        self.issued.load(Ordering::Acquire)
    }

    /// Everybody up to `ticket` may go on.
    pub fn settled(&self, ticket: u64) {
        self.settled.send_if_modified(|settled| std::mem::replace(settled, ticket) != ticket);
    }

    /// Waits for another caller.
    pub async fn called(&self) {
        self.wake.notified().await;
    }
}
