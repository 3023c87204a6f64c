//! Digest of a set of (sequence hash, tier): order-free and incremental.
//!
//! `digest = sum mod 2^64 of XXH3-64(seed 0, LE64(hash) ‖ tier byte)`; the empty set is 0. Adding a
//! block adds its term, removing it subtracts it.

use xxhash_rust::xxh3::xxh3_64;

/// The term of one block: add it when the block is stored, subtract it (wrapping) when it is removed.
/// `tier` is the number of the Tier enum in armature.kv.v1.
pub fn block_digest(hash: u64, tier: u8) -> u64 {
    let mut bytes = [0; 9];
    bytes[..8].copy_from_slice(&hash.to_le_bytes());
    bytes[8] = tier;
    xxh3_64(&bytes)
}

/// Digest of a whole set.
pub fn set_digest(blocks: impl IntoIterator<Item = (u64, u8)>) -> u64 {
    blocks.into_iter().fold(0, |sum, (hash, tier)| sum.wrapping_add(block_digest(hash, tier)))
}
