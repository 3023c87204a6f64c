//! `armature-kv-redis`: the KV-event state of workers in Redis.
//!
//! Does: name the keys and the commands (the wire layout of `README.md`), connect to a server or a cluster with TLS and ACL, check that it is
//! fit, run commands in pipelines with a time limit, hand out notifications.
//!
//! Does not: know what to write or to read next (the publisher in worker-svc and the reader in router-svc do), retry, or keep anything.

mod client;
pub mod command;
pub mod config;
mod fitness;
pub mod keys;
mod pauses;
mod reply;

pub use client::{Redis, RedisStore};
pub use command::{Command, ConnectError, Connector, Entry, Lost, Notices, Refusal, Reply, Store};
pub use config::{KvEventsConfig, Options, RedisConfig};
pub use fitness::Unfit;
pub use pauses::Pauses;
