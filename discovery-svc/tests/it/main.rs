//! The service over the in-process network, in virtual time where nothing outside is involved.

#![allow(clippy::unwrap_used)]

mod backend;
mod binary;
mod cards;
mod client;
mod file;
mod fleet;
mod heal;
mod interleavings;
mod leaders;
mod lease;
mod operations;
mod partition;
mod watch;
