//! RouterService over gRPC.

pub mod convert;
pub mod service;
pub mod status;
