//! The prefill worker's side: progress, sending, the pin.

pub(crate) mod core;
pub(crate) mod endpoint;
pub(crate) mod ledger;
pub(crate) mod session;
