//! The worker's pure core: no I/O, clock, async or entropy. Time and randomness
//! are arguments, so that property tests and simulations run the very code that
//! serves.

pub mod ids;
pub mod kv_events;
pub mod kv_publisher;
pub mod kv_store;
pub mod openai;
pub mod pool;
pub mod prefix_cache;
pub mod report;
pub mod request;
pub mod reservations;
pub mod sampled;
pub mod sampling;
pub mod scheduler;
pub mod step_model;
pub mod time;
