//! The float loops of the forward pass, each with an order of operations that no instruction set
//! changes: no fused multiply-add, sums over 16 fixed lanes, an exponential of our own. Compiled
//! once per instruction set (`kernels`), they give the same bits in each.
//!
//! - RMS norm: `x_i * w_i / sqrt(mean(x^2) + eps)`
//! - SwiGLU: `up * gate / (1 + exp(-gate))`
//! - activations: per block of 32, `scale = max |x| / 127`, `quant = round(x / scale)`

use super::activations::TileBlock;
use super::lanes::LANES;
use super::packed::PIECE;
use super::tensor::BLOCK;

/// Adding and subtracting 1.5 * 2^23 rounds a float of magnitude below 2^22 to an integer.
const ROUND: f32 = 12_582_912.0;

/// Sums 16 lanes as a fixed tree.
#[inline(always)]
pub(super) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `e^x`, by the polynomial of the Cephes library: `x = n ln 2 + r`, `|r| <= ln 2 / 2`. Saturates
/// below -87 and above 88; not-a-number stays so.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    y * f32::from_bits((exponent.wrapping_add(127) << 23) as u32)
}

/// RMS norm of one row.
#[inline(always)]
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    for piece in x.chunks_exact(LANES) {
        for lane in 0..LANES {
            lanes[lane] += piece[lane] * piece[lane];
        }
    }
    let factor = 1.0 / (tree_sum(lanes) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

/// SwiGLU of one row.
#[inline(always)]
pub(super) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

/// Adds a row to another.
#[inline(always)]
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Quantises one row into slot `slot` of a tile's blocks. A value that is not finite makes its
/// block's scale so, and shows in the result.
#[inline(always)]
pub(super) fn quantise(x: &[f32], slot: usize, blocks: &mut [TileBlock]) {
    for (x, block) in x.chunks_exact(BLOCK).zip(blocks) {
        // As integers the bit patterns of magnitudes have their order, not-a-number above all.
        let widest = f32::from_bits(x.iter().fold(0u32, |widest, v| widest.max(v.abs().to_bits())));
        let inverse = if widest == 0.0 { 0.0 } else { 127.0 / widest };
        let mut quants = [0i8; BLOCK];
        let mut sum = 0;
        for (quant, x) in quants.iter_mut().zip(x) {
            let q = ((x * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
            *quant = q as i8;
            sum += i32::from(q as i8);
        }
        for (to, quants) in block.quants.iter_mut().zip(quants.as_chunks::<PIECE>().0) {
            to[slot] = *quants;
        }
        block.scales[slot] = widest / 127.0;
        block.biases[slot] = -128 * sum;
    }
}

/// Turns pairs of neighbours of every head of a row by the row's angles: `cos` and `sin` of the
/// first `2 * cos.len()` elements of a head.
#[inline(always)]
pub(super) fn rotate(row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    for head in row.chunks_exact_mut(head_dim) {
        for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * cos - b * sin;
            pair[1] = a * sin + b * cos;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exp_is_within_three_units_in_the_last_place(x in -86.0f32..87.0) {
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            prop_assert!((ours - exact).abs() <= 3.0 * exact * f64::from(f32::EPSILON), "{x}: {ours} {exact}");
        }

        #[test]
        fn quantised_activations_err_by_half_a_step(x in prop::collection::vec(-1e3f32..1e3, 64), slot in 0..8usize) {
            let mut blocks = [TileBlock::default(); 2];
            quantise(&x, slot, &mut blocks);
            for (x, block) in x.chunks(32).zip(&blocks) {
                let step = block.scales[slot];
                let quants: Vec<i8> = block.quants.iter().flat_map(|piece| piece[slot]).collect();
                for (x, q) in x.iter().zip(&quants) {
                    prop_assert!((x - step * f32::from(*q)).abs() <= step * 0.5001);
                    prop_assert!(*q > i8::MIN);
                }
                prop_assert_eq!(block.biases[slot], -128 * quants.iter().map(|q| i32::from(*q)).sum::<i32>());
            }
        }
    }

    #[test]
    fn exp_keeps_not_a_number_and_saturates() {
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(1e9).is_finite());
    }

    #[test]
    fn what_is_not_finite_makes_the_scale_so() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 32];
            x[3] = bad;
            let mut blocks = [TileBlock::default()];
            quantise(&x, 0, &mut blocks);
            assert!(!blocks[0].scales[0].is_finite());
        }
    }
}
