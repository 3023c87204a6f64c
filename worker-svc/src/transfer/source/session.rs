//! The prefill worker's handle of one source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::task::TaskTracker;

use super::core::SourceCore;
use crate::domain::ids::BlockId;
use crate::transfer::ids::{PeerBlock, TransferId};
use crate::transfer::message::{Grant, PieceReady, SourceEvent, TransportKind};
use crate::transfer::range::{Extent, LayerRange, TokenRange};
use crate::transfer::reason::{Failure, Violation};
use crate::transfer::tcp::sender::{self, Destination};

/// One source. Dropping it aborts the transfer.
///
/// Blocks named in [`ready`](Self::ready) stay pinned until [`acknowledge`](Self::acknowledge) has
/// confirmed or the session has failed, and then until [`quiesced`](Self::quiesced).
#[derive(Debug)]
pub struct SourceSession {
    core: Arc<SourceCore>,
    tcp: Option<Destination>,
    sending: AtomicBool,
    told_moved: AtomicBool,
    told_end: AtomicBool,
    tasks: TaskTracker,
}

impl SourceSession {
    pub(crate) fn new(core: Arc<SourceCore>, tcp: Option<Destination>, tasks: TaskTracker) -> Self {
        Self {
            core,
            tcp,
            sending: AtomicBool::new(false),
            told_moved: AtomicBool::new(false),
            told_end: AtomicBool::new(false),
            tasks,
        }
    }

    /// The transfer.
    pub fn transfer(&self) -> TransferId {
        self.core.transfer
    }

    /// Takes a grant. The first one names the transport and starts the connection (tcp). Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// A breach of the rules, which ends the transfer, or how it ended before.
    pub fn granted(&self, grant: Grant) -> Result<(), Failure> {
        self.take_grant(grant).inspect_err(|failure| self.core.fail(*failure))
    }

    fn take_grant(&self, grant: Grant) -> Result<(), Failure> {
        if grant.transfer != self.core.transfer {
            return Err(Violation::OtherTransfer.into());
        }
        match (grant.transport, &self.tcp) {
            (TransportKind::Shm, _) if self.core.exports => self.core.ledger().grant(grant)?,
            (TransportKind::Tcp, Some(destination)) => {
                self.core.ledger().grant(grant)?;
                if !self.sending.swap(true, Ordering::Relaxed) {
                    let reader = self.core.reader()?;
                    let core = Arc::clone(&self.core);
                    self.tasks.spawn(sender::run(core, destination.clone(), reader));
                }
            }
            _ => return Err(Violation::WrongTransport.into()),
        }
        self.announce();
        Ok(())
    }

    /// Notes that `layers` of `tokens` are computed; `blocks` hold the tokens as in
    /// [`LandingSession::grant`](crate::transfer::LandingSession::grant). Tokens outside the offer are
    /// ignored. Cheap: callable from a layer callback.
    ///
    /// # Errors
    /// A call that does not fit the model, the pool or earlier calls, which ends the transfer, or how it
    /// ended before.
    pub fn ready(&self, layers: LayerRange, tokens: TokenRange, blocks: &[BlockId]) -> Result<(), Failure> {
        let block_size = self.core.kv.geometry().block_size as u32;
        let taken = Extent::new(tokens, blocks.to_vec(), block_size)
            .map_err(|_| Failure::from(Violation::BadBlocks))
            .and_then(|extent| self.core.ledger().ready(layers, &extent));
        taken.inspect_err(|failure| self.core.fail(*failure))?;
        self.announce();
        Ok(())
    }

    fn announce(&self) {
        self.core.work.notify_one();
        self.core.changed.notify_one();
    }

    /// Says that no more progress comes. Sending goes on until all has moved.
    ///
    /// # Errors
    /// [`Failure::Incomplete`] when a cell was never ready, which ends the transfer, or how it ended
    /// before.
    pub fn finish(&self) -> Result<(), Failure> {
        let finished = self.core.ledger().finish();
        finished.inspect_err(|failure| self.core.fail(*failure))
    }

    /// Ends the transfer. Does nothing when it is over.
    pub fn abort(&self) {
        self.core.fail(Failure::Aborted);
    }

    /// Ends the transfer for a reason that the control stream gave. Does nothing when it is over.
    pub fn fail(&self, failure: Failure) {
        self.core.fail(failure);
    }

    /// Takes D's Ack. `Ok` is what AckConfirmed stands for: the source was pinned from its first `ready`
    /// until now. Idempotent.
    ///
    /// # Errors
    /// How the transfer ended before (the source may have been reused: D throws its copy away), or
    /// [`Violation::EarlyAck`], which ends it.
    pub fn acknowledge(&self) -> Result<(), Failure> {
        let confirmed = self.core.ledger().acknowledge();
        match confirmed {
            Ok(()) => {
                self.core.ended.cancel();
                self.core.changed.notify_one();
            }
            Err(failure) => self.core.fail(failure),
        }
        confirmed
    }

    /// The next event; `None` once the Ack is confirmed or `Failed` has been told. For one consumer.
    /// Cancel-safe.
    pub async fn next(&self) -> Option<SourceEvent> {
        loop {
            if let Some(told) = self.poll_event() {
                return told;
            }
            self.core.changed.notified().await;
        }
    }

    /// `Some(None)` is the end of events.
    fn poll_event(&self) -> Option<Option<SourceEvent>> {
        let mut ledger = self.core.ledger();
        if let Some(Err(failure)) = ledger.end() {
            let told = self.told_end.swap(true, Ordering::Relaxed);
            return Some((!told).then_some(SourceEvent::Failed(failure)));
        }
        if ledger.transport() == Some(TransportKind::Shm)
            && let Some(piece) = ledger.take(u64::MAX)
        {
            ledger.moved(piece.cells());
            let extent = &piece.ready.extent;
            return Some(Some(SourceEvent::Piece(PieceReady {
                transfer: self.core.transfer,
                window: piece.window,
                layers: piece.ready.layers,
                tokens: extent.tokens(),
                blocks: extent.blocks().iter().map(|block| PeerBlock(block.0)).collect(),
            })));
        }
        if ledger.has_moved() && !self.told_moved.swap(true, Ordering::Relaxed) {
            return Some(Some(SourceEvent::Moved));
        }
        ledger.end().map(|_| None)
    }

    /// Resolves when the transfer is over and nothing here reads the source's blocks any more; it
    /// outlives the session.
    pub fn quiesced(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let core = Arc::clone(&self.core);
        async move { core.quiesced().await }
    }
}

impl Drop for SourceSession {
    fn drop(&mut self) {
        self.core.fail(Failure::Aborted);
    }
}
