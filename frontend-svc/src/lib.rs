//! The front door of the fleet: OpenAI's HTTP API and gRPC InferenceService.
//!
//! Does: check requests, render chat templates, tokenize, hash, ask a router, follow the workers' token streams across their deaths,
//! detokenize, find stop strings, account for it all.
//!
//! Does not: pick a worker, hold routing state, or run a model.

pub mod adapters;
pub mod app;
pub mod config;
pub mod domain;
pub mod gateway;
pub mod grpc;
pub mod http;
pub mod metrics;
pub mod models;
pub mod ports;
pub mod session;
