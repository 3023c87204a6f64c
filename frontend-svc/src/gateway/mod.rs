//! Gateway mode: the frontend as the Endpoint Picker of a Kubernetes Gateway (Gateway API Inference Extension, Endpoint Picker Protocol 1.0).
//!
//! Envoy sends each request here before it goes on (`envoy.service.ext_proc.v3`). It is checked, rendered, tokenized, hashed and routed as
//! one of our own, and Envoy is told where it goes: to the engine behind an adapter worker by its HTTP address, or, as engines of ours
//! speak gRPC, to a frontend, with the chosen workers in headers that this frontend hands to the router as pins ([`crate::domain::pin`]).
//!
//! [`exchange`] is what is said when, without I/O; [`picked`] is what a decision means to Envoy; [`service`] moves the messages.

pub mod exchange;
pub mod picked;
pub mod service;

/// Generated from `proto/envoy/service/ext_proc/v3/external_processor.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod wire {
    include!("wire/envoy.service.ext_proc.v3.rs");
}
