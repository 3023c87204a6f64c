//! The scheduler against a deterministic engine, peer and client.

mod handoff;
mod interleavings;
mod local;
mod world;
