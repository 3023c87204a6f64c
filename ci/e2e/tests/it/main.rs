//! End-to-end tests: one binary, a file per behaviour. The binaries under test are those of the same build.
#![allow(clippy::unwrap_used)]

mod broken_connections;
mod clients;
mod exit_codes;
mod external_engines;
mod faults;
mod load;
mod malformed;
mod malformed_grpc;
mod mixed_versions;
mod models;
mod openai_shapes;
mod overload;
mod sdk;
