//! The scheduler against a deterministic engine, peer and client.

mod handoff;
mod interleavings;
mod local;
mod migrated;
mod oracle;
mod peer;
mod quiescence;
mod world;
