//! The wire side: `armature.worker.v1.WorkerService`.

mod convert;
mod generate;
mod kv_feed;
mod prefill;
mod service;
mod state_feed;
mod status;
pub(crate) mod wire_to;

pub use service::WorkerGrpc;
