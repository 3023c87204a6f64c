//! What the engine writes as the KV of one token, and how it reads it back.
//!
//! Every element is an f32 in [1, 2) with 23 bits of payload: never zero, never NaN, so memory
//! that was not written, or was poisoned, is no entry. Layer 0 carries the content:
//!
//! ```text
//! layer 0, K: elements 0..4 = chain hash in four 16-bit pieces, lowest first
//! layer 0, V: elements 0..2 = token in two 16-bit pieces, lowest first
//! all others: a pseudo-random function of (chain hash, token, position, layer, part, element)
//! ```
//!
//! so that an element of another token, position, layer or part does not verify.

use super::chain::{ChainHash, mix, scramble};
use crate::domain::ids::BlockId;
use crate::kv_memory::{KvMemory, Part};

/// Bits of 1.0: sign and exponent of every element.
const ONE: u32 = 0x3F80_0000;
const PAYLOAD: u32 = (1 << 23) - 1;
const PARTS: [Part; 2] = [Part::K, Part::V];

/// Where the KV of a token lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Position in the sequence.
    pub(super) position: usize,
    /// Block that holds it.
    pub(super) block: BlockId,
    /// Slot in the block.
    pub(super) slot: usize,
}

impl Place {
    /// Position `position` of a sequence with this block table, if the table covers it.
    pub(super) fn of(position: usize, blocks: &[BlockId], block_size: usize) -> Option<Self> {
        let block = *blocks.get(position / block_size)?;
        Some(Self { position, block, slot: position % block_size })
    }

    fn row<'a>(&self, kv: &'a KvMemory, layer: usize, part: Part) -> &'a [f32] {
        let row = kv.geometry().row();
        &kv.part(self.block, layer, part)[self.slot * row..(self.slot + 1) * row]
    }
}

/// Why KV is not that of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mismatch {
    /// Layer 0 K was never written, or not by this engine.
    #[error("layer 0 K holds no chain hash")]
    NoHash,
    /// Layer 0 V was never written, or not by this engine.
    #[error("layer 0 V holds no token")]
    NoToken,
    /// A row is not the one that belongs to the chain hash and token in layer 0.
    #[error("layer {layer} {part:?} does not belong to the chain hash in layer 0")]
    Element {
        /// The layer.
        layer: usize,
        /// K or V of it.
        part: Part,
    },
    /// An entry of other tokens.
    #[error("it does not continue the tokens before it")]
    OtherPast,
}

/// Content of one token's KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Chain hash of the tokens up to and including this one.
    pub(super) hash: ChainHash,
    /// The token.
    pub(super) token: u32,
}

impl Entry {
    /// Writes one layer of the entry.
    pub(super) fn write(&self, kv: &KvMemory, place: Place, layer: usize) {
        for part in PARTS {
            let row = kv.row_mut(place.block, layer, part, place.slot);
            for (element, bits) in row.iter_mut().zip(self.elements(place.position, layer, part)) {
                *element = f32::from_bits(bits);
            }
        }
    }

    /// Reads an entry from layer 0 and verifies every element of every layer.
    ///
    /// # Errors
    /// What does not verify.
    pub(super) fn read(kv: &KvMemory, place: Place) -> Result<Self, Mismatch> {
        let hash = pieces::<4>(place.row(kv, 0, Part::K)).ok_or(Mismatch::NoHash)?;
        let token = pieces::<2>(place.row(kv, 0, Part::V)).ok_or(Mismatch::NoToken)?;
        let entry = Self { hash: ChainHash(hash), token: token as u32 };
        for layer in 0..kv.geometry().layers {
            for part in PARTS {
                let row = place.row(kv, layer, part);
                let expected = entry.elements(place.position, layer, part);
                if !row.iter().zip(expected).all(|(element, bits)| element.to_bits() == bits) {
                    return Err(Mismatch::Element { layer, part });
                }
            }
        }
        Ok(entry)
    }

    /// Bits of the elements of one row, without end.
    fn elements(&self, position: usize, layer: usize, part: Part) -> impl Iterator<Item = u32> + use<> {
        let row = (layer as u64) << 1 | u64::from(part == Part::V);
        let key = mix(mix(self.hash.0, u64::from(self.token)), mix(position as u64, row));
        let (content, carried) = match (layer, part) {
            (0, Part::K) => (self.hash.0, 4),
            (0, Part::V) => (u64::from(self.token), 2),
            _ => (0, 0),
        };
        (0u64..).map(move |i| {
            let payload =
                if i < carried { (content >> (16 * i)) & 0xFFFF } else { scramble(key.wrapping_add(i)) };
            ONE | (payload as u32 & PAYLOAD)
        })
    }
}

/// The number that the first `N` elements of a row carry.
fn pieces<const N: usize>(row: &[f32]) -> Option<u64> {
    row.iter().take(N).rev().try_fold(0, |number, element| {
        let bits = element.to_bits();
        (bits & !0xFFFF == ONE).then_some(number << 16 | u64::from(bits & 0xFFFF))
    })
}
