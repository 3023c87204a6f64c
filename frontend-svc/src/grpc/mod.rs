//! The gRPC InferenceService.

pub mod convert;
pub mod service;
pub mod status;
