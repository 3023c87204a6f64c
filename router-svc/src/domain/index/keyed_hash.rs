//! A cheap hasher for keys that are hashes already.
//!
//! Sequence hashes come from clients' tokens, so a client could choose prompts whose hashes fall into one bucket. Multiplying by a
//! secret odd key and folding the high half down prevents that at the cost of one multiplication.

use std::hash::{BuildHasher, Hasher};

/// Builds [`KeyedHasher`]s of one secret key.
#[derive(Debug, Clone, Copy)]
pub struct KeyedHash(u64);

impl KeyedHash {
    /// `key` is random and stays secret.
    pub fn new(key: u64) -> Self {
        Self(key | 1)
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = KeyedHasher;
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { key: self.0, state: 0 }
    }
}

/// Hashes one 64-bit key.
#[derive(Debug)]
pub struct KeyedHasher {
    key: u64,
    state: u64,
}

impl Hasher for KeyedHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.key);
        self.state = (product as u64) ^ (product >> 64) as u64;
    }
}
