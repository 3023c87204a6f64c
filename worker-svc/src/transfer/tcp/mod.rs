//! Transport `tcp`: P connects to D's KV data port, proves the secret and writes frames straight out
//! of its pool; D checks each frame against its grants and reads it straight into its own.
//!
//! ```text
//! P -> D  proof (see `proof.rs`), then frames: header (see `frame.rs`) and payload
//! D -> P  one status byte at the end
//! ```
//! Backpressure is TCP's: a D that does not read stops P at its socket buffer.

pub(crate) mod frame;
pub(crate) mod listener;
pub(crate) mod receiver;
pub(crate) mod sender;
pub(crate) mod status;
mod vectored;
