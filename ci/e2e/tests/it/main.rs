//! End-to-end tests: one binary, a file per behaviour. The binaries under test are those of the same build.
#![allow(clippy::unwrap_used)]

mod faults;
