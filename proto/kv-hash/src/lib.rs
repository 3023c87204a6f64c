//! Block identity on the wire, scheme `armature-xxh3-v1`.
//!
//! Does: derive the root key of a cache identity, the local and sequence hashes
//! of a token sequence's full blocks, and the digest of a set of blocks. The
//! README is the specification; `vectors/` holds golden vectors for other languages.
//!
//! Does not: decide whether KV may be reused. A 64-bit hash may only ever choose a
//! worker; whoever reuses KV bytes compares root and tokens.

mod block;
mod root;
mod set;

pub use block::{Extra, SequenceHasher, sequence_hashes};
pub use root::{RootKey, RootParts};
pub use set::{block_digest, set_digest};

/// Name of the scheme; it travels with every list of hashes.
pub const HASH_SCHEME: &str = "armature-xxh3-v1";
