//! The reference: what every other kernel computes.

use half::f16;

use super::super::activations::TileBlock;
use super::super::packed::{GROUP, PIECE, QUANT_BYTES, SCALE_BYTES};

/// Sixteen output elements for each of the first `M` rows of a tile.
pub(super) fn multiply<const M: usize>(
    (scales, quants): (&[u8], &[u8]),
    tile: &[TileBlock],
) -> [[f32; GROUP]; M] {
    let mut out = [[0.0; GROUP]; M];
    let blocks = scales.chunks_exact(SCALE_BYTES).zip(quants.chunks_exact(QUANT_BYTES));
    for ((scales, quants), input) in blocks.zip(tile) {
        let scale = |lane: usize| f16::from_le_bytes([scales[2 * lane], scales[2 * lane + 1]]).to_f32();
        let scales: [f32; GROUP] = std::array::from_fn(scale);
        for (row, out) in out.iter_mut().enumerate() {
            let mut sums = [0i32; GROUP];
            for (weights, activations) in quants.chunks_exact(GROUP * PIECE).zip(&input.quants) {
                for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(PIECE)) {
                    for (weight, activation) in weights.iter().zip(activations[row]) {
                        *sum += i32::from(*weight as i8) * i32::from(activation);
                    }
                }
            }
            for lane in 0..GROUP {
                out[lane] += sums[lane] as f32 * (scales[lane] * input.scales[row]);
            }
        }
    }
    out
}
