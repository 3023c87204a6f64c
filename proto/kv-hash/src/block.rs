//! Local and sequence hashes of full blocks.
//!
//! `local_i = XXH3-64(seed, u32-LE tokens of block i ‖ extras of block i)`;
//! `seq_0 = local_0`; `seq_i = XXH3-64(seed, LE64(seq_(i-1)) ‖ LE64(local_i))`.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::RootKey;

/// Something besides tokens that a block's KV depends on (an image, say).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extra {
    /// What it is; numbers are assigned in the README.
    pub kind: u8,
    /// Token offset inside the block.
    pub offset: u16,
    /// Digest of its content.
    pub digest: [u8; 16],
}

/// Hashes one sequence block by block.
#[derive(Debug, Clone)]
pub struct SequenceHasher {
    seed: u64,
    block_size: usize,
    last: Option<u64>,
    scratch: Vec<u8>,
}

impl SequenceHasher {
    /// A hasher at the start of a sequence under `root`.
    ///
    /// # Panics
    /// When `block_size` is 0.
    pub fn new(root: RootKey, block_size: usize) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        Self { seed: root.seed(), block_size, last: None, scratch: Vec::with_capacity(block_size * 4) }
    }

    /// Appends a full block and returns its sequence hash. `extras` may come in any order.
    ///
    /// # Panics
    /// When `tokens` is not exactly one block: partial blocks have no hash.
    pub fn push_block(&mut self, tokens: &[u32], extras: &[Extra]) -> u64 {
        assert_eq!(tokens.len(), self.block_size, "partial blocks are not hashed");
        self.scratch.clear();
        for token in tokens {
            self.scratch.extend_from_slice(&token.to_le_bytes());
        }
        if !extras.is_empty() {
            let mut sorted = extras.to_vec();
            sorted.sort_unstable();
            for extra in &sorted {
                self.scratch.push(extra.kind);
                self.scratch.extend_from_slice(&extra.offset.to_le_bytes());
                self.scratch.extend_from_slice(&extra.digest);
            }
        }
        let local = xxh3_64_with_seed(&self.scratch, self.seed);
        let sequence = match self.last {
            None => local,
            Some(previous) => {
                let mut link = [0; 16];
                link[..8].copy_from_slice(&previous.to_le_bytes());
                link[8..].copy_from_slice(&local.to_le_bytes());
                xxh3_64_with_seed(&link, self.seed)
            }
        };
        self.last = Some(sequence);
        sequence
    }

    /// Sequence hash of the last block pushed.
    pub fn last(&self) -> Option<u64> {
        self.last
    }
}

/// Sequence hashes of the full blocks of `tokens`, first to last; a partial tail has none.
///
/// # Panics
/// When `block_size` is 0.
pub fn sequence_hashes(root: RootKey, block_size: usize, tokens: &[u32]) -> Vec<u64> {
    let mut hasher = SequenceHasher::new(root, block_size);
    tokens.chunks_exact(block_size).map(|block| hasher.push_block(block, &[])).collect()
}
