//! The KV data plane between a prefill worker (source, P) and a decode worker (landing, D).
//!
//! Does: move the KV of a token range, layer by layer while later layers still compute, from blocks of
//! P's pool into blocks of D's, and prove afterwards that nothing can write any more. Two transports
//! behind one port: `tcp` (P writes frames that D checks against its grants) and `shm` (D copies out of
//! a read-only mapping of P's sealed pool).
//!
//! Does not: talk gRPC, choose workers, allocate or free blocks, compute. The control stream carries
//! the message types (`message.rs`) between the two sides; the pool's accounting acts on the sessions' events.
//!
//! A piece is some layers of some tokens. Each (layer, token) cell moves exactly once, inside exactly
//! one granted window; both sides keep the set of cells, and whatever does not fit ends the transfer
//! with a typed reason, and nothing else.

mod cells;
mod ids;
mod landing;
mod mapping;
mod message;
mod port;
mod proof;
mod range;
mod reason;
mod registry;
mod segments;
mod shm;
mod source;
mod tcp;

pub use ids::{BootId, Incarnation, IncarnationError, PeerBlock, TransferId, TransferSecret, WindowIndex};
pub use landing::endpoint::{HostLanding, LandingOptions, MAPPING_IDLE, ShmLanding, TcpLanding};
pub use landing::session::LandingSession;
pub use message::{
    Acceptance, Chosen, Commit, Grant, LandingEvent, Offer, PieceReady, SourceEvent, TransportKind,
};
pub use port::{LandingEndpoint, LandingRequest, SourceEndpoint};
pub use range::{Extent, ExtentError, LayerRange, TokenRange};
pub use reason::{AcceptError, Failure, GrantError, OpenError, PeerFailure, ShmRefusal, Violation};
pub use source::endpoint::{HostSource, ShmExport, SourceOptions};
pub use source::session::SourceSession;
