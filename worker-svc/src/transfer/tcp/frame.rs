//! The header in front of each payload: 48 bytes, little endian.
//!
//! ```text
//! 0 magic(4)  4 transfer(16)  20 window(4)  24 first layer(4)  28 layers(4)
//! 32 first token(4)  36 tokens(4)  40 payload bytes(8)
//! ```

use crate::transfer::ids::{TransferId, WindowIndex};
use crate::transfer::landing::ledger::Piece;
use crate::transfer::range::{LayerRange, TokenRange};
use crate::transfer::reason::Violation;

/// Length of a header.
pub(crate) const HEADER: usize = 48;
const MAGIC: [u8; 4] = *b"akvf";

/// A header's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) transfer: TransferId,
    pub(crate) piece: Piece,
    pub(crate) bytes: u64,
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let Piece { window, layers, tokens } = self.piece;
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&MAGIC);
        header[4..20].copy_from_slice(&self.transfer.0.to_le_bytes());
        let fields = [window.0, layers.start, layers.len(), tokens.start, tokens.len()];
        for (slot, field) in header[20..40].chunks_exact_mut(4).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        header[40..].copy_from_slice(&self.bytes.to_le_bytes());
        header
    }

    /// # Errors
    /// [`Violation::MalformedFrame`] for anything that no sender of this protocol writes.
    pub(crate) fn decode(header: &[u8; HEADER]) -> Result<Self, Violation> {
        if header[..4] != MAGIC {
            return Err(Violation::MalformedFrame);
        }
        let field =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let transfer = header[4..20].try_into().map_err(|_| Violation::MalformedFrame)?;
        let bytes = header[40..].try_into().map_err(|_| Violation::MalformedFrame)?;
        let layers = LayerRange::counted(field(24), field(28)).ok_or(Violation::MalformedFrame)?;
        let tokens = TokenRange::counted(field(32), field(36)).ok_or(Violation::MalformedFrame)?;
        Ok(Self {
            transfer: TransferId(u128::from_le_bytes(transfer)),
            piece: Piece { window: WindowIndex(field(20)), layers, tokens },
            bytes: u64::from_le_bytes(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_decode_to_an_error_or_to_what_encodes_to_them(
            mut header in prop::array::uniform32(any::<u8>()), tail in prop::array::uniform16(any::<u8>()),
            with_magic in any::<bool>(),
        ) {
            if with_magic {
                header[..4].copy_from_slice(&MAGIC);
            }
            let mut bytes = [0; HEADER];
            bytes[..32].copy_from_slice(&header);
            bytes[32..].copy_from_slice(&tail);
            match Frame::decode(&bytes) {
                Ok(frame) => prop_assert_eq!(frame.encode(), bytes),
                Err(violation) => prop_assert_eq!(violation, Violation::MalformedFrame),
            }
        }

        #[test]
        fn a_frame_survives_the_wire(transfer in any::<u128>(), window in any::<u32>(), layer in 0u32..1000,
            layers in 0u32..1000, token in 0u32..1_000_000, tokens in 0u32..1_000_000, bytes in any::<u64>()) {
            let piece = Piece {
                window: WindowIndex(window),
                layers: LayerRange::new(layer, layer + layers),
                tokens: TokenRange::new(token, token + tokens),
            };
            let frame = Frame { transfer: TransferId(transfer), piece, bytes };
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
    }
}
