//! One landing as its session, its connection and its copies share it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::ledger::{LandingLedger, Piece};
use crate::kv_memory::KvMemory;
use crate::transfer::ids::{TransferId, TransferSecret};
use crate::transfer::message::LandingEvent;
use crate::transfer::range::{Extent, TokenRange};
use crate::transfer::reason::Failure;

#[derive(Debug)]
pub(crate) struct LandingCore {
    pub(crate) transfer: TransferId,
    pub(crate) secret: TransferSecret,
    pub(crate) kv: Arc<KvMemory>,
    ledger: Mutex<LandingLedger>,
    /// The session's consumer waits here; one permit is kept for it.
    changed: Notify,
    /// Set once the ledger has ended.
    pub(crate) ended: CancellationToken,
    /// Holds a token for each task that may still write into the pool.
    writers: TaskTracker,
}

/// The right to write into the granted blocks. While one lives, the landing is not quiesced.
#[derive(Debug, Clone)]
pub(crate) struct Writer(#[allow(dead_code, reason = "held, never read")] TaskTrackerToken);

impl LandingCore {
    pub(crate) fn new(
        transfer: TransferId,
        secret: TransferSecret,
        tokens: TokenRange,
        kv: Arc<KvMemory>,
    ) -> Self {
        let writers = TaskTracker::new();
        writers.close();
        Self {
            transfer,
            secret,
            ledger: Mutex::new(LandingLedger::new(*kv.geometry(), kv.blocks(), tokens)),
            kv,
            changed: Notify::new(),
            ended: CancellationToken::new(),
            writers,
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, LandingLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A writer of this landing, unless it is over: taken under the ledger's lock, so that none begins
    /// after the end.
    pub(crate) fn writer(&self) -> Result<Writer, Failure> {
        let ledger = self.ledger();
        ledger.check_open()?;
        Ok(Writer(self.writers.token()))
    }

    /// The writer for the transfer's one data connection; `None` when it is over, has one, or does not
    /// use tcp.
    pub(crate) fn connection(&self) -> Option<Writer> {
        let mut ledger = self.ledger();
        ledger.connect().then(|| Writer(self.writers.token()))
    }

    /// Takes an announced piece; a breach of the rules ends the landing.
    pub(crate) fn claim(&self, piece: Piece) -> Result<Extent, Failure> {
        let claimed = self.ledger().claim(piece);
        claimed.inspect_err(|failure| self.fail(*failure))
    }

    /// Notes that a claimed piece is in the pool in full.
    pub(crate) fn landed(&self, piece: Piece) {
        let over = {
            let mut ledger = self.ledger();
            ledger.landed(piece);
            ledger.end().is_some()
        };
        if over {
            self.ended.cancel();
        }
        self.changed.notify_one();
    }

    pub(crate) fn fail(&self, failure: Failure) {
        if self.ledger().fail(failure) {
            self.ended.cancel();
            self.changed.notify_one();
        }
    }

    /// The next event; `None` after the last one.
    pub(crate) async fn next(&self) -> Option<LandingEvent> {
        loop {
            {
                let mut ledger = self.ledger();
                if let Some(event) = ledger.next_event() {
                    return Some(event);
                }
                if ledger.end().is_some() {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Resolves when the landing is over and nothing can write into its blocks any more.
    pub(crate) async fn quiesced(&self) {
        self.ended.cancelled().await;
        self.writers.wait().await;
    }
}
