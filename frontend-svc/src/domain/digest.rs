//! Digests of cards, weights, tokenizers and templates.

use std::fmt;

use bytes::Bytes;

/// A digest as a card or a registration names it; BLAKE3-256 where we verify it. Prints as hex, the first 8 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub Bytes);

impl Digest {
    /// The BLAKE3-256 of `content`.
    pub fn of(content: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(blake3::hash(content).as_bytes()))
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True for "there is none".
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Bytes> for Digest {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
