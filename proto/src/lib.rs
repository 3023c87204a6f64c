//! What two Armature services must agree on: generated messages and services of
//! `armature.*.v1`, newtypes of the ids, typed errors.
//!
//! The semantics are in the comments of the .proto files; this crate adds no
//! behaviour. It does not connect, listen or decide anything.

pub mod convert;
pub mod error;
pub mod ids;

pub use armature_kv_hash as kv_hash;

#[allow(missing_docs, clippy::all, unreachable_pub, rust_2018_idioms)]
mod generated {
    /// Shared KV vocabulary.
    pub mod kv {
        pub mod v1 {
            include!("gen/armature.kv.v1.rs");
        }
    }
    pub mod inference {
        pub mod v1 {
            include!("gen/armature.inference.v1.rs");
        }
    }
    pub mod discovery {
        pub mod v1 {
            include!("gen/armature.discovery.v1.rs");
        }
    }
    pub mod router {
        pub mod v1 {
            include!("gen/armature.router.v1.rs");
        }
    }
    pub mod worker {
        pub mod v1 {
            include!("gen/armature.worker.v1.rs");
        }
    }
}

pub use generated::{discovery, inference, kv, router, worker};

/// Descriptors of every package, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/descriptors.bin");

/// Largest gRPC message that a service sends or takes, in bytes. The largest by design are artifacts (32 MiB); a prompt
/// of 200,000 tokens takes about 1 MiB.
pub const MAX_MESSAGE_BYTES: usize = 48 * 1024 * 1024;

/// Largest artifact (tokenizer, chat template) in bytes.
pub const MAX_ARTIFACT_BYTES: usize = 32 * 1024 * 1024;

/// Largest model card in bytes.
pub const MAX_CARD_BYTES: usize = 1024 * 1024;
