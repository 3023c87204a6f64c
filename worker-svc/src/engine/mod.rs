//! Implementations of [`crate::ports::Engine`], one folder each.

pub mod llama;
mod load;
pub mod sim;

pub use load::{EngineStartError, Loaded, load};
