//! Integration tests of the worker: one binary, a file per behaviour. Real engines and real transfers,
//! over an in-process network.
#![allow(clippy::unwrap_used)]

mod fencing;
mod generate;
mod handoff;
mod harness;
mod kv;
mod llama;
mod openai;
mod redis;
mod registry;
mod scheduler;
mod transfer;
