//! The kit as its users see it: over the network it gives them, in virtual time.
#![allow(clippy::unwrap_used)]

mod admin;
mod calls;
mod configuration;
mod garbage;
mod keep_alive;
mod lifecycle;
mod limits;
mod network;
mod probe;
mod registration;
mod registry;
mod silence;
mod traces;
mod watching;
