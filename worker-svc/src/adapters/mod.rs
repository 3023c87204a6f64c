//! What the worker has to do with others otherwise than by its own service.

pub mod kv_publisher;
pub mod openai;
