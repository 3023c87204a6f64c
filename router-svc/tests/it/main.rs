//! The router between a scripted discovery and scripted workers, over an in-process network.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod approximate;
mod backlog;
mod disaggregation;
mod fake_discovery;
mod fake_worker;
mod fleet;
mod index;
mod lifecycle;
mod membership;
mod record;
mod redis;
mod reservations;
mod rig;
mod simulated_fleet;
mod simulated_load;
