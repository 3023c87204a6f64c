//! What every Armature service needs and no service owns.
//!
//! Does: configuration ([`config`], [`secret`], [`exit`]), logs, traces and the admin server
//! ([`telemetry`], [`trace`], [`admin`], [`http_server`], [`health_check`]), addresses and sockets ([`address`],
//! [`network`], [`reachable`]), gRPC
//! clients and servers with deadlines, identity and limits ([`channel`], [`server`], [`layers`],
//! [`call`], [`grpc_timeout`]), membership ([`discovery_client`]), and an orderly end ([`drain`]).
//!
//! Does not: know what is served. No routing, no tokens, no engine; a word of serving in this
//! crate is in the wrong place.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
pub mod admin;
pub mod call;
pub mod channel;
pub mod config;
mod dial;
pub mod discovery_client;
pub mod drain;
pub mod exit;
pub mod grpc_timeout;
pub mod health_check;
pub mod http_server;
pub mod layers;
pub mod network;
mod preface;
pub mod reachable;
pub mod secret;
pub mod server;
pub mod telemetry;
pub mod trace;
