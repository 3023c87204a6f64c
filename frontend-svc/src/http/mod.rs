//! OpenAI's API over HTTP.

pub mod answer;
pub mod body;
pub mod chat;
pub mod collect;
pub mod completions;
pub mod error;
pub mod fields;
pub mod logprobs;
pub mod models;
pub mod server;
pub mod shape;
pub mod sse;
