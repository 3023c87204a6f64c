//! `llama`: a Llama-family transformer on the CPU, from a GGUF file, over our own paged KV memory.
//!
//! Weights are Q8_0, whatever the file has; activations are quantised to 8 bits per row and block of
//! 32; KV and attention are f32. Every output element is a sum in an order that depends on nothing
//! but its own position, so the engine is batch-invariant bit for bit, and its kernels agree bit for
//! bit across instruction sets.
//!
//! Does not: tokenize, sample, or decide what to compute.

mod activations;
mod artifacts;
mod attention;
mod cache;
mod gguf;
mod kernels;
mod lanes;
mod mapping;
mod math;
mod model;
mod packed;
mod pass;
mod rope;
mod shape;
mod store;
mod template;
mod tensor;
mod threads;
mod tokenizer;
mod weights;

pub use activations::Activations;
pub use artifacts::Artifacts;
pub use cache::ModelDigest;
pub use gguf::{Gguf, GgufError, Value};
pub use kernels::{IDENTITY, Kernels};
pub use model::{LlamaEngine, LoadError, LoadOptions, load};
pub use packed::{NotFinite, Packed, PackedShape};
pub use shape::{Rope, Shape};
pub use store::WeightStore;
pub use tensor::{Kind, TensorType};
