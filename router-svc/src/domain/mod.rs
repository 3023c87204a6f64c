//! Pure decisions: no I/O, no clock, no entropy. Time and randomness are arguments.

pub mod backlog;
pub mod dispatch;
pub mod explain;
pub mod fit;
pub mod index;
pub mod kv_reader;
pub mod load;
pub mod policy;
pub mod reservations;
pub mod router;
pub mod step_cost;
pub mod units;
pub mod worker;
