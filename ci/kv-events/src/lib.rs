//! The KV-event state from end to end: publishers of workers, a Redis between them, readers of routers.
//!
//! Dev-only. The publishers and readers are the services' own; what is made here is a model of Redis with exactly the commands used
//! ([`sim`]), an event log without a worker around it ([`log`]), and fleets of both that a test disturbs ([`fleet`]).

pub mod fleet;
pub mod log;
pub mod router;
pub mod sim;
