//! An engine of somebody else behind our contract: any HTTP server that speaks OpenAI's API, with more known of vLLM, SGLang and llama.cpp.
//!
//! ```text
//! handlers --submit/cancel--> [ Mutex<Shared> ] <--load, health-- monitor --GET /health, /metrics--> engine
//!          <----- events ------ one task per request, one connection per choice --POST, SSE------> engine
//! ```
//!
//! A choice is a connection of its own: closing it is how a choice is cancelled, and no choice waits for another.
//!
//! Does: turn requests into the engine's words and its answers into tokens, report load, watch its health.
//! Does not: schedule (the engine does), know which blocks the engine has cached, or move KV.

mod call;
mod client;
mod discover;
mod engine;
mod files;
mod metrics;
mod monitor;
mod probe;
mod run;
mod vocabulary;

pub use client::{BadUrl, EngineClient, EngineUrl};
pub use discover::{DiscoverError, Settings, discover};
pub use engine::{Found, OpenAiEngine};
pub use metrics::EngineMetrics;
pub use monitor::Watch;
