//! The service as others call it: generated types on one side, domain types on the other.

pub mod convert;
pub mod keep_alive;
pub mod service;
pub mod status;
pub mod watch;
