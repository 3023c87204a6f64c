//! One file per port: how it is done over gRPC.

pub mod artifacts;
pub mod choice_ends;
pub mod convert;
pub mod fault;
pub mod membership;
pub mod releases;
pub mod routers;
pub mod system;
pub mod workers;
