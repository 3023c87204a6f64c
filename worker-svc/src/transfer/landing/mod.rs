//! The decode worker's side: grants, checks, landing.

pub(crate) mod core;
pub(crate) mod endpoint;
pub(crate) mod ledger;
pub(crate) mod session;
pub(crate) mod settle;
