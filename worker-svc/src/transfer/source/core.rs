//! One source as its session and its sender share it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::ledger::{OutPiece, SourceLedger};
use crate::kv_memory::KvMemory;
use crate::transfer::ids::{TransferId, TransferSecret};
use crate::transfer::range::TokenRange;
use crate::transfer::reason::Failure;

#[derive(Debug)]
pub(crate) struct SourceCore {
    pub(crate) transfer: TransferId,
    pub(crate) secret: TransferSecret,
    pub(crate) kv: Arc<KvMemory>,
    /// Whether D may map our pool for this transfer.
    pub(crate) exports: bool,
    ledger: Mutex<SourceLedger>,
    /// The session's consumer waits here.
    pub(crate) changed: Notify,
    /// The sender waits here for work.
    pub(crate) work: Notify,
    /// Set once the ledger has ended.
    pub(crate) ended: CancellationToken,
    /// Holds a token for each task that may still read the source's blocks.
    readers: TaskTracker,
}

/// The right to read the source's blocks. While one lives, the source is not quiesced.
#[derive(Debug)]
pub(crate) struct Reader(#[allow(dead_code, reason = "held, never read")] TaskTrackerToken);

impl SourceCore {
    pub(crate) fn new(
        transfer: TransferId,
        secret: TransferSecret,
        tokens: TokenRange,
        kv: Arc<KvMemory>,
        exports: bool,
    ) -> Self {
        let readers = TaskTracker::new();
        readers.close();
        Self {
            transfer,
            secret,
            ledger: Mutex::new(SourceLedger::new(*kv.geometry(), kv.blocks(), tokens)),
            kv,
            exports,
            changed: Notify::new(),
            work: Notify::new(),
            ended: CancellationToken::new(),
            readers,
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, SourceLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader of this source, unless it is over.
    pub(crate) fn reader(&self) -> Result<Reader, Failure> {
        let ledger = self.ledger();
        ledger.check_open()?;
        Ok(Reader(self.readers.token()))
    }

    /// The next piece to send, of at most `max_bytes`; waits for one.
    pub(crate) async fn take(&self, max_bytes: u64) -> OutPiece {
        loop {
            if let Some(piece) = self.ledger().take(max_bytes) {
                return piece;
            }
            self.work.notified().await;
        }
    }

    /// A taken piece has left.
    pub(crate) fn moved(&self, cells: u64) {
        if self.ledger().moved(cells) {
            self.changed.notify_one();
        }
    }

    /// D says that everything has landed: so has all that was under way.
    pub(crate) fn landed_at_peer(&self) -> Result<(), Failure> {
        self.ledger().moved_all()?;
        self.changed.notify_one();
        Ok(())
    }

    pub(crate) fn fail(&self, failure: Failure) {
        if self.ledger().fail(failure) {
            self.ended.cancel();
            self.changed.notify_one();
        }
    }

    /// Resolves when the transfer is over and nothing here reads its blocks any more.
    pub(crate) async fn quiesced(&self) {
        self.ended.cancelled().await;
        self.readers.wait().await;
    }
}
