//! `armature-worker`: one engine behind one contract.
//!
//! Does: run an engine (a real Llama-family transformer on CPU, or a timing
//! model; or stand before a server of somebody else), schedule requests over a paged KV pool, sample tokens, publish KV
//! events and load, move KV between prefill and decode workers, drain.
//!
//! Does not: choose workers, see text, know about other requests' routing, or
//! keep any state that a restart must recover.

pub mod adapters;
pub mod app;
pub mod card;
pub mod config;
pub mod domain;
pub mod driver;
pub mod engine;
pub mod faults;
pub mod grpc;
mod handoff;
mod https;
pub mod identity;
pub mod kv_memory;
pub mod kv_wire;
pub mod metrics;
pub mod ports;
pub mod reference_model;
pub mod transfer;
pub mod worker;
