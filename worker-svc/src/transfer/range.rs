//! Ranges of tokens and layers, and where a range of tokens lies in a pool.

use crate::domain::ids::BlockId;

macro_rules! half_open_range {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            /// First member.
            pub start: u32,
            /// One past the last member.
            pub end: u32,
        }

        impl $name {
            /// `start..end`.
            pub fn new(start: u32, end: u32) -> Self {
                Self { start, end }
            }
            /// The range that begins at `start` and has `count` members, unless it passes `u32::MAX`.
            pub fn counted(start: u32, count: u32) -> Option<Self> {
                Some(Self { start, end: start.checked_add(count)? })
            }
            /// Members; 0 when the range is empty or reversed.
            pub fn len(self) -> u32 {
                self.end.saturating_sub(self.start)
            }
            /// Whether nothing is in it.
            pub fn is_empty(self) -> bool {
                self.end <= self.start
            }
            /// Whether all of `other` is in it.
            pub fn contains(self, other: Self) -> bool {
                self.start <= other.start && other.end <= self.end
            }
            /// What both have; `None` when that is nothing.
            pub fn intersect(self, other: Self) -> Option<Self> {
                let common = Self { start: self.start.max(other.start), end: self.end.min(other.end) };
                (!common.is_empty()).then_some(common)
            }
        }
    };
}

half_open_range! {
    /// Token positions of a prompt, half open.
    TokenRange
}
half_open_range! {
    /// Transformer layers, half open.
    LayerRange
}

/// Why tokens and blocks do not make an [`Extent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{blocks} blocks do not cover tokens {tokens:?} in blocks of {block_size}")]
pub struct ExtentError {
    /// The tokens to be covered.
    pub tokens: TokenRange,
    /// Blocks given.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: u32,
}

/// Tokens and the blocks of one pool that hold them: position `p` lives in
/// `blocks[p / block_size - tokens.start / block_size]`, slot `p % block_size`.
/// The first and the last block may be covered in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent<B = BlockId> {
    tokens: TokenRange,
    blocks: Vec<B>,
    block_size: u32,
}

impl<B: Copy> Extent<B> {
    /// `tokens`, held by `blocks`.
    ///
    /// # Errors
    /// [`ExtentError`] when the range is empty or `blocks` are not as many as it touches.
    pub fn new(tokens: TokenRange, blocks: Vec<B>, block_size: u32) -> Result<Self, ExtentError> {
        let error = ExtentError { tokens, blocks: blocks.len(), block_size };
        if tokens.is_empty() || block_size == 0 {
            return Err(error);
        }
        let touched = (tokens.end.div_ceil(block_size) - tokens.start / block_size) as usize;
        if blocks.len() != touched {
            return Err(error);
        }
        Ok(Self { tokens, blocks, block_size })
    }

    /// The tokens.
    pub fn tokens(&self) -> TokenRange {
        self.tokens
    }

    /// The blocks that hold them, first token's first.
    pub fn blocks(&self) -> &[B] {
        &self.blocks
    }

    /// The part of it that lies in `tokens`; `None` when nothing does.
    pub fn clip(&self, tokens: TokenRange) -> Option<Self> {
        let tokens = self.tokens.intersect(tokens)?;
        let base = self.tokens.start / self.block_size;
        let first = (tokens.start / self.block_size - base) as usize;
        let last = (tokens.end.div_ceil(self.block_size) - base) as usize;
        Some(Self { tokens, blocks: self.blocks[first..last].to_vec(), block_size: self.block_size })
    }

    /// Each block with the slots `start..end` of it that are covered.
    pub fn slots(&self) -> impl Iterator<Item = (B, u32, u32)> + '_ {
        let size = self.block_size;
        let base = self.tokens.start / size;
        self.blocks.iter().enumerate().map(move |(nth, block)| {
            let first = (base + nth as u32) * size;
            let start = self.tokens.start.max(first) - first;
            let end = (self.tokens.end - first).min(size);
            (*block, start, end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_covers_exactly_the_blocks_it_touches() {
        let tokens = TokenRange::new(3, 9);
        assert!(Extent::new(tokens, vec![1, 2], 4).is_err());
        let extent = Extent::new(tokens, vec![7, 8, 9], 4).unwrap();
        assert_eq!(extent.slots().collect::<Vec<_>>(), [(7, 3, 4), (8, 0, 4), (9, 0, 1)]);
        let clipped = extent.clip(TokenRange::new(4, 6)).unwrap();
        assert_eq!(clipped.slots().collect::<Vec<_>>(), [(8, 0, 2)]);
        assert!(extent.clip(TokenRange::new(9, 12)).is_none());
        assert!(Extent::<u32>::new(TokenRange::new(5, 5), vec![], 4).is_err());
    }
}
