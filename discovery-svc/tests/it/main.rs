//! The service over the in-process network, in virtual time.

#![allow(clippy::unwrap_used)]

mod cards;
mod fleet;
mod heal;
mod leaders;
mod lease;
mod operations;
mod watch;
