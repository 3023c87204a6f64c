//! The decode worker's handle of one landing.

use std::sync::Arc;

use super::core::LandingCore;
use super::settle::Settle;
use crate::domain::ids::BlockId;
use crate::transfer::ids::TransferId;
use crate::transfer::message::{Acceptance, Chosen, Grant, LandingEvent, PieceReady, TransportKind};
use crate::transfer::range::TokenRange;
use crate::transfer::reason::{Failure, GrantError};

/// One landing. Dropping it aborts the transfer.
///
/// Order of use: send the offer; [`accepted`](Self::accepted) with P's answer; then
/// [`grant`](Self::grant) windows and relay [`PieceReady`]s, while another task takes
/// [`next`](Self::next). Whatever the end, blocks that were granted and did not land may be reused only
/// after [`quiesced`](Self::quiesced).
#[derive(Debug)]
pub struct LandingSession {
    core: Arc<LandingCore>,
    settle: Settle,
}

impl LandingSession {
    pub(crate) fn new(core: Arc<LandingCore>, settle: Settle) -> Self {
        Self { core, settle }
    }

    /// The transfer.
    pub fn transfer(&self) -> TransferId {
        self.core.transfer
    }

    /// Takes P's answer and settles the transport: shared memory when P offers it and its pool can be
    /// fetched and checked, tcp otherwise. Cancel-safe; call it until it has answered once.
    ///
    /// # Errors
    /// How the transfer ended, if it is over, or [`Failure::NoTransport`], which ends it.
    pub async fn accepted(&self, acceptance: Acceptance) -> Result<Chosen, Failure> {
        self.core.ledger().check_open()?;
        if let Some(chosen) = self.core.ledger().chosen() {
            return Ok(chosen);
        }
        self.settle.settle(&self.core, acceptance).await.inspect_err(|failure| self.core.fail(*failure))
    }

    /// Opens `blocks` for `tokens` and returns what to tell P. Position `p` will be written to
    /// `blocks[p / block_size - tokens.start / block_size]`, slot `p % block_size`; other slots of a
    /// block covered in part are not touched.
    ///
    /// # Errors
    /// [`GrantError`]; nothing is granted then, and the session goes on.
    pub fn grant(&self, tokens: TokenRange, blocks: Vec<BlockId>) -> Result<Grant, GrantError> {
        let (window, transport) = self.core.ledger().grant(tokens, blocks)?;
        Ok(Grant { transfer: self.core.transfer, window, tokens, transport })
    }

    /// Takes progress that P announced (shm) and begins to copy it.
    ///
    /// # Errors
    /// A breach of the rules, which ends the transfer, or how it ended before.
    pub fn piece_ready(&self, piece: PieceReady) -> Result<(), Failure> {
        self.settle.piece_ready(&self.core, piece).inspect_err(|failure| self.core.fail(*failure))
    }

    /// Ends the transfer. Does nothing when it is over.
    pub fn abort(&self) {
        self.core.fail(Failure::Aborted);
    }

    /// Ends the transfer for a reason that the control stream gave. Does nothing when it is over.
    pub fn fail(&self, failure: Failure) {
        self.core.fail(failure);
    }

    /// The next event; `None` after `AllLanded` or `Failed`. For one consumer. Cancel-safe.
    pub async fn next(&self) -> Option<LandingEvent> {
        self.core.next().await
    }

    /// The settled transport.
    pub fn transport(&self) -> Option<TransportKind> {
        self.core.ledger().chosen().map(|chosen| chosen.transport)
    }

    /// Resolves when the transfer is over and nothing can write into its blocks any more; it outlives
    /// the session. The proof that ends a quarantine.
    pub fn quiesced(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let core = Arc::clone(&self.core);
        async move { core.quiesced().await }
    }
}

impl Drop for LandingSession {
    fn drop(&mut self) {
        self.core.fail(Failure::Aborted);
    }
}
