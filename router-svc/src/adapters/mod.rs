//! Implementations of what the domain needs from the outside world, a file each.

pub mod backoff;
pub mod cards;
pub mod membership;
pub mod record;
pub mod redis;
pub mod worker_feed;
pub mod worker_messages;
