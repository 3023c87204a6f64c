//! Which transport a landing uses, and what it needs for it.

use super::core::LandingCore;
use crate::transfer::message::{Acceptance, Chosen, PieceReady, TransportKind};
use crate::transfer::reason::{Failure, ShmRefusal, Violation};

#[derive(Debug)]
pub(crate) struct Settle {
    /// Whether there is a listener.
    pub(crate) tcp: bool,
}

impl Settle {
    pub(crate) async fn settle(&self, core: &LandingCore, acceptance: Acceptance) -> Result<Chosen, Failure> {
        let shm_refused = match acceptance {
            Acceptance::Tcp { shm_refused } => shm_refused,
            Acceptance::Shm { .. } => Some(ShmRefusal::NotConfigured),
        };
        if !self.tcp {
            return Err(Failure::NoTransport(shm_refused.unwrap_or(ShmRefusal::NotConfigured)));
        }
        core.ledger().settle(Chosen { transport: TransportKind::Tcp, shm_refused })
    }

    pub(crate) fn piece_ready(&self, _core: &LandingCore, _piece: PieceReady) -> Result<(), Failure> {
        Err(Violation::WrongTransport.into())
    }
}
