//! discovery-svc: who is alive.
//!
//! Does: instances with leases, their statuses, model cards and small artifacts by digest, leadership; tells watchers a snapshot and then
//! every change. Doubt keeps an instance, ranked last.
//!
//! Does not: hold state that its backend does not hold, carry load or tokens, choose a worker, probe anybody.
//!
//! [`domain`] decides, [`replica`] runs it on a clock and a backend ([`ports`], [`adapters`]), [`grpc`] is its face, [`app`] composes.

pub mod adapters;
pub mod app;
pub mod config;
pub mod domain;
pub mod grpc;
pub mod metrics;
pub mod ports;
pub mod replica;
