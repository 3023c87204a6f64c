//! Tests that see more than one service, and what they need: real processes on random ports, killed on drop, their logs
//! shown when a test fails.
//!
//! The binaries are those of the same build; `ci/gate.sh` (or `cargo build --workspace --bins`) makes them first.

pub mod between;
pub mod client;
pub mod cluster;
pub mod eras;
pub mod process;
pub mod suite;
pub mod wire;

use std::time::{Duration, Instant};

/// Longest wait for a state.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a state; fails naming the one it waited for in vain.
pub async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(10));
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        pause.tick().await;
    }
}
