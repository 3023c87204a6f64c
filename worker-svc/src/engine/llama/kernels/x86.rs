//! The kernels for AVX2 and for AVX-512 with VNNI.
//!
//! This is one of the files where `unsafe` is allowed: for loads and stores through pointers, and
//! for the instructions behind [`Ymm`] and [`Zmm`], whose values are made only by code that
//! [`super::Kernels`] runs after it has found the instructions on this machine.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::activations::TileBlock;
use super::super::lanes::{LANES, Lanes};
use super::super::packed::{GROUP, PIECE, QUANT_BYTES, SCALE_BYTES};
use super::super::tensor::BLOCK;

const PIECES: usize = BLOCK / PIECE;

/// Eight rows of a group at a time: `|w| * (a with w's sign)`, pairs summed to 16 bits (at most
/// 2 * 127 * 127, which fits), pairs of those to 32. Gives the output elements of `M` rows of the
/// tile, from `SLOT` on.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn multiply_avx2<const M: usize, const SLOT: usize>(
    (scales, quants): (&[u8], &[u8]),
    tile: &[TileBlock],
) -> [[f32; GROUP]; M] {
    let ones = _mm256_set1_epi16(1);
    let mut out = [[0.0; GROUP]; M];
    for half in 0..2 {
        let mut totals = [_mm256_setzero_ps(); M];
        let blocks = scales.chunks_exact(SCALE_BYTES).zip(quants.chunks_exact(QUANT_BYTES));
        for ((scales, quants), input) in blocks.zip(tile) {
            let mut sums = [_mm256_setzero_si256(); M];
            for piece in 0..PIECES {
                let weights = quants[piece * GROUP * PIECE + half * 32..][..32].as_ptr();
                // SAFETY: 32 bytes, by the slice above.
                let weights = unsafe { _mm256_loadu_si256(weights.cast()) };
                let magnitudes = _mm256_abs_epi8(weights);
                for (m, sum) in sums.iter_mut().enumerate() {
                    let activations = _mm256_set1_epi32(four(input.quants[piece][SLOT + m]));
                    let signed = _mm256_sign_epi8(activations, weights);
                    let pairs = _mm256_maddubs_epi16(magnitudes, signed);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
            // SAFETY: 16 bytes, by the slice.
            let halves = unsafe { _mm_loadu_si128(scales[half * 16..][..16].as_ptr().cast()) };
            let scales = _mm256_cvtph_ps(halves);
            for (m, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
                let scale = _mm256_mul_ps(scales, _mm256_set1_ps(input.scales[SLOT + m]));
                *total = _mm256_add_ps(*total, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
            }
        }
        for (out, total) in out.iter_mut().zip(totals) {
            // SAFETY: eight floats, by the slice.
            unsafe { _mm256_storeu_ps(out[half * 8..][..8].as_mut_ptr(), total) };
        }
    }
    out
}

/// Sixteen rows of a group at a time. The instruction multiplies unsigned by signed bytes: the
/// weights go in 128 too large, and the sums start from the input's bias, which takes that back.
/// Gives the output elements of the first `M` rows of the tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn multiply_avx512<const M: usize>(
    (scales, quants): (&[u8], &[u8]),
    tile: &[TileBlock],
) -> [[f32; GROUP]; M] {
    let top_bits = _mm512_set1_epi8(i8::MIN);
    let mut totals = [_mm512_setzero_ps(); M];
    let blocks = scales.chunks_exact(SCALE_BYTES).zip(quants.chunks_exact(QUANT_BYTES));
    for ((scales, quants), input) in blocks.zip(tile) {
        let mut sums: [__m512i; M] = std::array::from_fn(|m| _mm512_set1_epi32(input.biases[m]));
        for piece in 0..PIECES {
            let weights = quants[piece * GROUP * PIECE..][..GROUP * PIECE].as_ptr();
            // SAFETY: 64 bytes, by the slice above.
            let weights = unsafe { _mm512_loadu_si512(weights.cast()) };
            let weights = _mm512_xor_si512(weights, top_bits);
            for (m, sum) in sums.iter_mut().enumerate() {
                let activations = _mm512_set1_epi32(four(input.quants[piece][m]));
                *sum = _mm512_dpbusd_epi32(*sum, weights, activations);
            }
        }
        // SAFETY: 32 bytes, the scales of one block.
        let halves = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
        let scales = _mm512_cvtph_ps(halves);
        for (m, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(input.scales[m]));
            *total = _mm512_add_ps(*total, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
        }
    }
    let mut out = [[0.0; GROUP]; M];
    for (out, total) in out.iter_mut().zip(totals) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), total) };
    }
    out
}

/// Four neighbouring quants, as the bits of an `i32`.
#[inline(always)]
fn four(quants: [i8; PIECE]) -> i32 {
    i32::from_le_bytes(quants.map(|q| q as u8))
}

/// Sixteen floats in two AVX registers.
#[derive(Clone, Copy)]
pub(super) struct Ymm(__m256, __m256);

// SAFETY of the blocks below: AVX, which whoever runs this code has checked; pointers into arrays of
// the length that is read or written.
impl Lanes for Ymm {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        unsafe { Self(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())) }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), self.1);
        }
    }

    #[inline(always)]
    fn multiply_add(self, a: Self, b: Self) -> Self {
        unsafe {
            Self(
                _mm256_add_ps(self.0, _mm256_mul_ps(a.0, b.0)),
                _mm256_add_ps(self.1, _mm256_mul_ps(a.1, b.1)),
            )
        }
    }

    #[inline(always)]
    fn transpose(rows: [&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
        unsafe { transpose(rows, to) }
    }
}

/// Sixteen floats in one AVX-512 register.
#[derive(Clone, Copy)]
pub(super) struct Zmm(__m512);

// SAFETY of the blocks below: AVX-512 F, which whoever runs this code has checked; pointers into
// arrays of the length that is read or written.
impl Lanes for Zmm {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(value)) }
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        unsafe { Self(_mm512_loadu_ps(from.as_ptr())) }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) };
    }

    #[inline(always)]
    fn multiply_add(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, _mm512_mul_ps(a.0, b.0))) }
    }

    #[inline(always)]
    fn transpose(rows: [&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
        unsafe { transpose(rows, to) }
    }
}

/// Transposes 16 × 16 floats, 8 × 8 at a time.
#[target_feature(enable = "avx")]
fn transpose(rows: [&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
    for row in [0, 8] {
        for column in [0, 8] {
            // SAFETY: eight floats, by the slice.
            let load = |i: usize| unsafe { _mm256_loadu_ps(rows[row + i][column..][..8].as_ptr()) };
            let pair = |i: usize, j: usize| {
                let (a, b) = (load(i), load(j));
                (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
            };
            let ((a0, a1), (b0, b1)) = (pair(0, 1), pair(2, 3));
            let ((c0, c1), (d0, d1)) = (pair(4, 5), pair(6, 7));
            let four = |low: __m256, high: __m256| {
                (_mm256_shuffle_ps::<0x44>(low, high), _mm256_shuffle_ps::<0xee>(low, high))
            };
            let (top, bottom) = ([four(a0, b0), four(a1, b1)], [four(c0, d0), four(c1, d1)]);
            for (i, ((t0, t1), (b0, b1))) in top.into_iter().zip(bottom).enumerate() {
                for (j, (t, b)) in [(t0, b0), (t1, b1)].into_iter().enumerate() {
                    let (low, high) =
                        (_mm256_permute2f128_ps::<0x20>(t, b), _mm256_permute2f128_ps::<0x31>(t, b));
                    for (at, value) in [(2 * i + j, low), (2 * i + j + 4, high)] {
                        // SAFETY: eight floats, by the slice.
                        unsafe { _mm256_storeu_ps(to[column + at][row..][..8].as_mut_ptr(), value) };
                    }
                }
            }
        }
    }
}
