//! Real Consul agents and Redis servers as child processes of a test: random ports on loopback, data in a temporary folder,
//! killed on drop, the last lines of their logs shown when the test fails.
//!
//! The programs come from the folder named by `ARMATURE_BACKENDS` (`ci/setup.sh backends` prints one), or from PATH. Dev-only: no service
//! depends on it outside its tests.

mod consul;
mod program;
mod redis;

pub use consul::Consul;
pub use program::free_port;
pub use redis::Redis;
