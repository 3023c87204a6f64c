//! Publishers and readers over a simulated and over a real Redis.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod access;
mod cluster;
mod model;
mod real;
mod script;
