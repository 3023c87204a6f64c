//! Tests with containers, one after the other: each fleet wants the whole machine. `ci/containers.sh` runs them.
#![allow(clippy::unwrap_used)]

mod backends;
mod compose;
mod faults;
mod rolling;
mod settings;
mod worker;
