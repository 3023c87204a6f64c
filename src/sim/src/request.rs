//! A request of a workload, and its tokens.
//!
//! Tokens are not kept: a piece of text has a name, and its token at an offset is a function of both. Two prompts share a prefix when
//! they begin with the same pieces, and the answer of a request is a piece as well, so that a later turn can repeat it.

use std::sync::Arc;
use std::time::Duration;

use crate::draw::scramble;

/// Names a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text(pub u64);

impl Text {
    /// The token at `offset` of this text.
    pub fn token(self, offset: u32) -> u32 {
        // Multiplying spreads names that are small numbers; what is left of 64 bits is one token.
        scramble(self.0.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ u64::from(offset)) as u32
    }

    /// Its first `tokens` tokens.
    pub fn tokens(self, tokens: u32) -> impl Iterator<Item = u32> {
        (0..tokens).map(move |offset| self.token(offset))
    }
}

/// The first tokens of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Which text.
    pub text: Text,
    /// How much of it.
    pub tokens: u32,
}

/// A prompt: pieces one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt(pub Vec<Piece>);

impl Prompt {
    /// Tokens of it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.tokens as usize).sum()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its tokens.
    pub fn tokens(&self) -> Arc<[u32]> {
        let mut tokens = Vec::with_capacity(self.len());
        tokens.extend(self.0.iter().flat_map(|piece| piece.text.tokens(piece.tokens)));
        tokens.into()
    }
}

/// A request of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimRequest {
    /// When it arrives, from the start of the workload.
    pub at: Duration,
    /// What it asks; at least one token.
    pub prompt: Prompt,
    /// The answer's text.
    pub answer: Text,
    /// Tokens of the answer; at least one.
    pub output: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pieces_are_equal_tokens_and_no_others() {
        let piece = |text, tokens| Piece { text: Text(text), tokens };
        let one = Prompt(vec![piece(1, 512), piece(2, 100)]).tokens();
        let other = Prompt(vec![piece(1, 512), piece(3, 100)]).tokens();
        assert_eq!((one.len(), &one[..512]), (612, &other[..512]));
        assert!(one[512..].iter().zip(&other[512..]).all(|(a, b)| a != b));
    }
}
