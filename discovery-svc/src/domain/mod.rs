//! Who is alive, as pure state machines: time and randomness are arguments, nothing here waits, listens or draws.
//!
//! [`store`] is what a backend keeps for all replicas; [`registry`] is what one replica makes of it: leases, judgement, the view that
//! watchers follow.

pub mod blobs;
pub mod guard;
pub mod instance;
pub mod leaders;
pub mod registry;
pub mod store;
pub mod time;
pub mod tombstones;
pub mod view;
