//! Why transfers do not begin and why they end.

use std::io;

use super::ids::WindowIndex;
use super::range::{ExtentError, TokenRange};

/// A breach of the transfer's rules by the peer. It ends the transfer and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not a frame at all.
    #[error("malformed frame")]
    MalformedFrame,
    /// A frame or message of another transfer.
    #[error("names another transfer")]
    OtherTransfer,
    /// A window that was not granted.
    #[error("window {0:?} is not granted")]
    WindowNotGranted(WindowIndex),
    /// Tokens outside the window.
    #[error("tokens {0:?} are outside the window")]
    TokensOutsideWindow(TokenRange),
    /// Layers that the model does not have, or none.
    #[error("layers are outside the model")]
    LayersOutsideModel,
    /// A length that is not that of the layers and tokens.
    #[error("{found} bytes where {expected} belong")]
    WrongLength {
        /// Length of the layers and tokens named.
        expected: u64,
        /// Length named.
        found: u64,
    },
    /// A cell that came before.
    #[error("a piece came twice")]
    RepeatedPiece,
    /// Blocks that do not hold the tokens, or are not in the pool.
    #[error("blocks do not hold the tokens")]
    BadBlocks,
    /// A grant out of order, outside the offer, overlapping another, or of another transport.
    #[error("grant does not fit the transfer")]
    BadGrant,
    /// An Ack before everything was sent.
    #[error("acknowledged before everything was sent")]
    EarlyAck,
    /// A message for another transport than the settled one.
    #[error("message does not belong to the settled transport")]
    WrongTransport,
}

/// What the peer said of its own end, over the data connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFailure {
    /// Its owner aborted.
    #[error("aborted")]
    Aborted,
    /// Its deadline passed.
    #[error("deadline passed")]
    Deadline,
    /// It found a breach of the rules.
    #[error("found a violation")]
    Violation,
    /// Anything else.
    #[error("failed")]
    Other,
}

/// Why a transfer ended without everything having moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// This side's owner aborted, or dropped the session.
    #[error("aborted")]
    Aborted,
    /// This side's endpoint closed.
    #[error("endpoint closed")]
    Closed,
    /// This side's deadline passed.
    #[error("deadline passed")]
    Deadline,
    /// The peer broke the rules.
    #[error("violation: {0}")]
    Violation(#[from] Violation),
    /// The peer ended it and said why.
    #[error("peer {0}")]
    Peer(PeerFailure),
    /// The peer's proof of the secret is wrong, or it could not be made.
    #[error("peer did not prove the transfer's secret")]
    Unproven,
    /// The peer cannot be reached.
    #[error("cannot connect: {0}")]
    Unreachable(io::ErrorKind),
    /// The data connection ended between frames.
    #[error("data connection lost")]
    ConnectionLost,
    /// The data connection ended inside a frame.
    #[error("data connection ended inside a frame")]
    Truncated,
    /// The data connection failed.
    #[error("data connection failed: {0}")]
    Io(io::ErrorKind),
    /// The source was finished without every cell having been ready.
    #[error("finished before every layer of every token was ready")]
    Incomplete,
    /// A step was taken after the transfer had completed.
    #[error("transfer is complete")]
    Complete,
    /// Neither shared memory nor a listener is left to carry the transfer.
    #[error("no transport left: {0}")]
    NoTransport(ShmRefusal),
    /// A copy task died.
    #[error("copy died")]
    CopyDied,
}

/// Why shared memory is not used for a transfer; each is worth a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ShmRefusal {
    /// One side has no socket directory.
    #[error("not configured")]
    NotConfigured,
    /// The boot ids differ.
    #[error("other host")]
    OtherHost,
    /// P's socket cannot be reached from here.
    #[error("socket unreachable")]
    Unreachable,
    /// The peer at the socket did not prove the secret.
    #[error("unproven")]
    Unproven,
    /// No descriptor came, or not one.
    #[error("no descriptor")]
    NoDescriptor,
    /// The descriptor lacks a seal.
    #[error("descriptor is not sealed")]
    NotSealed,
    /// The pool's shape or size is not ours.
    #[error("other pool shape")]
    OtherShape,
    /// The kernel refused the mapping.
    #[error("cannot map")]
    CannotMap,
    /// The exchange took too long.
    #[error("timed out")]
    TimedOut,
}

/// Why a landing does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The endpoint holds as many transfers as it may.
    #[error("too many transfers")]
    TooManyTransfers,
    /// A transfer of this id is open.
    #[error("transfer id in use")]
    InUse,
    /// No token is missing.
    #[error("empty token range")]
    Empty,
    /// The endpoint is closing.
    #[error("endpoint closed")]
    Closed,
}

/// Why a source does not accept an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// As for a landing.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Nothing offered can be used from here.
    #[error("no common transport (shm: {0})")]
    NoTransport(ShmRefusal),
}

/// Why a window is not granted. The session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The transfer is over.
    #[error("transfer is over: {0}")]
    Over(Failure),
    /// The transport is not settled yet.
    #[error("transport is not settled")]
    NotSettled,
    /// The blocks do not hold the tokens.
    #[error(transparent)]
    Extent(#[from] ExtentError),
    /// A block outside the pool, or one that already takes other tokens of the transfer.
    #[error("block cannot take these tokens")]
    BadBlock,
    /// Tokens outside the offer or in an earlier window.
    #[error("tokens {0:?} are not open to a grant")]
    BadTokens(TokenRange),
}
