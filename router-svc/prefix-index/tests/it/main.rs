//! What an index promises, seen from outside.
#![allow(clippy::unwrap_used)]

mod forgetting;
mod memory;
mod model;
mod rig;
mod threads;
