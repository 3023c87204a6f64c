//! Implementations of [`crate::ports::Engine`], one folder or file each.

pub mod llama;
pub mod sim;
