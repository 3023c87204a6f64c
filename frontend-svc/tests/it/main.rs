//! The frontend between scripted neighbours, over an in-process network.
#![allow(clippy::unwrap_used)]

mod cancel;
mod chat;
mod client;
mod completions;
mod fake_discovery;
mod fake_router;
mod fake_worker;
mod garbage;
mod gateway;
mod grpc;
mod harness;
mod hold;
mod limits;
mod malformed;
mod migration;
mod models;
mod queueing;
mod routers;
