//! What the two sides tell each other over the control stream, in plain types.
//!
//! ```text
//! D -> P  Offer        with the request: what D can land, and the secret
//! P -> D  Acceptance   the transport that P would use
//! D -> P  Grant        tokens that may be sent now, and the transport that D settled on
//! P -> D  PieceReady   (shm) source blocks that D may copy
//! D -> P  Ack, then P -> D AckConfirmed: the source was pinned throughout
//! ```

use super::ids::{BootId, Incarnation, PeerBlock, TransferId, TransferSecret, WindowIndex};
use super::range::{LayerRange, TokenRange};
use super::reason::ShmRefusal;

/// How the bytes of a transfer move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// P writes frames into a connection that D reads into its pool.
    Tcp,
    /// D copies out of a read-only mapping of P's pool.
    Shm,
}

/// What D offers for one transfer. At least one of `tcp` and `shm` is present.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The transfer.
    pub transfer: TransferId,
    /// What both sides prove to each other on the data path.
    pub secret: TransferSecret,
    /// The tokens that D lacks: `[from, prompt_len)`.
    pub tokens: TokenRange,
    /// `host:port` of D's KV data listener.
    pub tcp: Option<String>,
    /// The host on which D can map a pool.
    pub shm: Option<BootId>,
}

/// P's answer to an [`Offer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acceptance {
    /// P will connect to D's listener.
    Tcp {
        /// Why not shared memory, where D offered it.
        shm_refused: Option<ShmRefusal>,
    },
    /// D may fetch P's pool at the socket `<incarnation>.sock` of the configured directory.
    Shm {
        /// P's incarnation. It only names the socket; the secret opens it.
        incarnation: Incarnation,
    },
}

/// Permission to move some tokens. The destination blocks stay on D.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The transfer.
    pub transfer: TransferId,
    /// 0, 1, 2... in order.
    pub window: WindowIndex,
    /// The tokens; disjoint from those of every other window.
    pub tokens: TokenRange,
    /// The transport, the same in every grant of a transfer.
    pub transport: TransportKind,
}

/// Some layers of some granted tokens are computed and may be copied (shm).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceReady {
    /// The transfer.
    pub transfer: TransferId,
    /// The window that holds the tokens.
    pub window: WindowIndex,
    /// Finished layers.
    pub layers: LayerRange,
    /// Finished tokens.
    pub tokens: TokenRange,
    /// P's blocks that hold `tokens`, first token's first.
    pub blocks: Vec<PeerBlock>,
}

/// What the landing side must see before it may use what has landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// Nothing: the bytes were sent to us, and no later change at the source can reach them.
    Now,
    /// P's confirmation of our Ack: the bytes were read from P's memory, and are what P computed only
    /// if P held them all that time. Without it the copy is thrown away.
    AfterAckConfirmed,
}

/// What a landing session tells its owner, in order; nothing follows the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LandingEvent {
    /// Every cell of a window has landed.
    WindowLanded(WindowIndex),
    /// Every cell of the transfer has landed.
    AllLanded(Commit),
    /// The transfer is over; its blocks may be reused once the session is quiesced.
    Failed(super::reason::Failure),
}

/// What a source session tells its owner, in order; nothing follows `Failed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// To be relayed to D (shm).
    Piece(PieceReady),
    /// Everything has been sent (tcp) or relayed (shm). The source stays pinned until the Ack.
    Moved,
    /// The transfer is over; the source may be unpinned once the session is quiesced.
    Failed(super::reason::Failure),
}

/// The transport of a landing, settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// What every grant will name.
    pub transport: TransportKind,
    /// Why it is not shared memory, where that was offered: to be counted.
    pub shm_refused: Option<ShmRefusal>,
}
