//! The service over the in-process network, in virtual time where nothing outside is involved, and in real time on real Consul agents.

#![allow(clippy::unwrap_used)]

mod backend;
mod binary;
mod cards;
mod client;
mod consul;
mod file;
mod fleet;
mod heal;
mod interleavings;
mod leaders;
mod lease;
mod merging;
mod operations;
mod partition;
mod watch;
