//! What the worker tells to the outside otherwise than by its own service.

pub mod kv_publisher;
