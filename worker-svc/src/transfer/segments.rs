//! The order of a piece's bytes, the same on the wire and in every pool.
//!
//! A piece is some layers of some tokens. Its bytes run block by block; a block covered in all its
//! slots is one contiguous range of all those layers (a pool's layout is
//! `[block][layer][k|v][token][row]`), one covered in part gives K rows and V rows, layer by layer.

use std::ops::Range;

use super::range::{Extent, LayerRange};
use crate::ports::KvGeometry;

/// One contiguous run of bytes in one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment<B> {
    pub(crate) block: B,
    /// Offsets in the block.
    pub(crate) bytes: Range<usize>,
}

/// Bytes of one token in one layer, K and V.
pub(crate) fn cell_bytes(geometry: &KvGeometry) -> usize {
    2 * geometry.row() * size_of::<f32>()
}

/// Bytes of a piece of so many layers and tokens.
pub(crate) fn piece_bytes(geometry: &KvGeometry, layers: u32, tokens: u32) -> u64 {
    u64::from(layers) * u64::from(tokens) * cell_bytes(geometry) as u64
}

/// The segments of `layers` of `extent`, in the order of the module's documentation.
pub(crate) fn segments<B: Copy>(
    geometry: &KvGeometry,
    layers: LayerRange,
    extent: &Extent<B>,
) -> Vec<Segment<B>> {
    let layer_bytes = geometry.layer_bytes();
    let row_bytes = geometry.row() * size_of::<f32>();
    let mut found = Vec::with_capacity(extent.blocks().len());
    for (block, start, end) in extent.slots() {
        let (start, end) = (start as usize, end as usize);
        if start == 0 && end == geometry.block_size {
            let bytes = layers.start as usize * layer_bytes..layers.end as usize * layer_bytes;
            found.push(Segment { block, bytes });
            continue;
        }
        for layer in layers.start as usize..layers.end as usize {
            for part in [0, layer_bytes / 2] {
                let base = layer * layer_bytes + part;
                found.push(Segment { block, bytes: base + start * row_bytes..base + end * row_bytes });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::range::TokenRange;
    use super::*;

    proptest! {
        #[test]
        fn segments_are_disjoint_in_bounds_and_have_exactly_the_bytes(
            layers in 1usize..5, heads in 1usize..3, dim in 1usize..5, size in 1usize..6,
            first_layer in 0u32..5, layer_count in 1u32..5, start in 0u32..20, count in 1u32..20,
        ) {
            let geometry = KvGeometry { layers, kv_heads: heads, head_dim: dim, block_size: size };
            let range = LayerRange::new(first_layer, first_layer + layer_count);
            prop_assume!(range.end as usize <= layers);
            let tokens = TokenRange::new(start, start + count);
            let touched = tokens.end.div_ceil(size as u32) - start / size as u32;
            let extent = Extent::new(tokens, (0..touched).collect(), size as u32).unwrap();
            let mut seen = vec![false; touched as usize * geometry.block_bytes()];
            let mut total = 0u64;
            for segment in segments(&geometry, range, &extent) {
                prop_assert!(segment.bytes.end <= geometry.block_bytes());
                for byte in segment.bytes {
                    let at = segment.block as usize * geometry.block_bytes() + byte;
                    prop_assert!(!std::mem::replace(&mut seen[at], true));
                    total += 1;
                }
            }
            prop_assert_eq!(total, piece_bytes(&geometry, layer_count, count));
        }
    }
}
