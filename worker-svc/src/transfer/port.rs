//! The port that a transport family implements, and that the control plane drives.

use std::fmt::Debug;

use tokio::time::Instant;

use super::ids::{TransferId, TransferSecret};
use super::landing::session::LandingSession;
use super::message::{Acceptance, Offer};
use super::range::TokenRange;
use super::reason::{AcceptError, OpenError};
use super::source::session::SourceSession;

/// A transfer that a decode worker wants.
#[derive(Debug)]
pub struct LandingRequest {
    /// Fresh, random.
    pub transfer: TransferId,
    /// Fresh, from a cryptographic generator, used for this transfer only.
    pub secret: TransferSecret,
    /// The missing tokens: `[from, prompt_len)`; never empty.
    pub tokens: TokenRange,
    /// When the transfer fails unless everything has landed.
    pub deadline: Instant,
}

/// Where KV can land: the decode side of the data plane.
pub trait LandingEndpoint: Send + Sync + Debug {
    /// Opens a transfer. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&self, request: LandingRequest) -> Result<(Offer, LandingSession), OpenError>;
}

/// Where KV can come from: the prefill side of the data plane.
pub trait SourceEndpoint: Send + Sync + Debug {
    /// Takes a decode worker's offer; the session fails at `deadline` unless it has been acknowledged.
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`AcceptError`].
    fn accept(&self, offer: Offer, deadline: Instant) -> Result<(Acceptance, SourceSession), AcceptError>;
}
