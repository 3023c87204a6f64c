//! Which worker computes a request.
//!
//! Does: keep a prefix index and a load picture of the workers, decide, reserve, explain. Does not: sit in a token stream, or see text or
//! tokens; it sees hashes and counts.

pub mod adapters;
pub mod app;
pub mod config;
pub mod domain;
pub mod grpc;
pub mod metrics;
pub mod ports;
pub mod shared;
