//! The kernels, picked at run time: scalar, AVX2, AVX-512 with VNNI.
//!
//! An output element is, over the blocks `b` of a row in order,
//! `sum_b float(sum_i w_bi a_bi) * (scale_w_b * scale_a_b)`: the inner sum is exact in integers, the
//! outer one adds in block order without fusing. So every kernel gives the same bits, for one row or
//! many, and [`IDENTITY`] names the arithmetic, not the instruction set.
//!
//! This is one of the files where `unsafe` is allowed: for the intrinsics, and to call code
//! compiled for instructions that were found at run time.
#![allow(unsafe_code)]

use super::activations::{ActivationRow, Activations};
use super::attention::{self, Heads, Scratch};
use super::math;
use super::packed::{GROUP, PIECE, Packed, QUANT_BYTES, SCALE_BYTES};
use super::tensor::BLOCK;

/// Name of the arithmetic. Two engines with equal weights and equal names compute equal bits.
pub const IDENTITY: &str = "q8_0-v1";

/// Rows of activations that stay in the second-level cache while the weights pass by once.
const ROWS_PER_PASS: usize = 96;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The kernels of one instruction set that this machine has. There is no other way to make one,
/// which is what makes calling them sound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernels(Isa);

/// Calls a generic loop, compiled for the instruction set at hand.
macro_rules! per_isa {
    ($kernels:expr, $generic:path, ($($arg:ident : $ty:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn avx2($($arg: $ty),*) {
            $generic($($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512($($arg: $ty),*) {
            $generic($($arg),*)
        }
        match $kernels.0 {
            Isa::Scalar => $generic($($arg),*),
            // SAFETY: a `Kernels` of this kind exists only where the instructions do.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512($($arg),*) },
        }
    }};
}

impl Kernels {
    /// The fastest kernels of this machine.
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self(Isa::Scalar))
    }

    /// All kernels of this machine, slowest first.
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self(Isa::Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                found.push(Self(Isa::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                {
                    found.push(Self(Isa::Avx512));
                }
            }
        }
        found
    }

    /// Name of the instruction set.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512-vnni",
        }
    }

    /// Multiplies: row `m` of `out` gets the output elements of `groups` (16 per group, fewer in
    /// the last one of a matrix) for row `m` of the activations.
    ///
    /// # Panics
    /// When the shapes do not belong together.
    pub fn multiply(
        self,
        matrix: Packed<'_>,
        groups: std::ops::Range<usize>,
        activations: &Activations,
        out: &mut [&mut [f32]],
    ) {
        let shape = matrix.shape();
        assert_eq!(shape.cols, activations.cols(), "a matrix multiplies rows of its own width");
        assert_eq!(out.len(), activations.rows(), "one output row per activation row");
        assert!(groups.end <= shape.groups(), "groups of this matrix");
        let width = (groups.end * GROUP).min(shape.rows) - (groups.start * GROUP).min(shape.rows);
        assert!(out.iter().all(|row| row.len() == width), "output rows as wide as the groups");
        for first in (0..out.len()).step_by(ROWS_PER_PASS) {
            let last = out.len().min(first + ROWS_PER_PASS);
            for group in groups.clone() {
                let at = (group - groups.start) * GROUP;
                let weights = matrix.group(group);
                let mut row = first;
                while row < last {
                    row += self.tile(weights, activations, row..last, at, out);
                }
            }
        }
    }

    /// Computes one group for the next few rows of `rows`; returns how many.
    fn tile(
        self,
        weights: (&[u8], &[u8]),
        activations: &Activations,
        rows: std::ops::Range<usize>,
        at: usize,
        out: &mut [&mut [f32]],
    ) -> usize {
        macro_rules! rows {
            ($kernel:expr, $count:literal) => {{
                let inputs: [ActivationRow<'_>; $count] =
                    std::array::from_fn(|n| activations.row(rows.start + n));
                // SAFETY: a `Kernels` of this kind exists only where the instructions do, and a
                // matrix and activations of equal width have the bytes that the kernel reads.
                let sums: [[f32; GROUP]; $count] = unsafe { $kernel(weights, inputs) };
                for (out, sums) in out[rows.start..].iter_mut().zip(sums) {
                    let len = GROUP.min(out.len() - at);
                    out[at..at + len].copy_from_slice(&sums[..len]);
                }
                $count
            }};
        }
        match (self.0, rows.len()) {
            (Isa::Scalar, 4..) => rows!(scalar, 4),
            (Isa::Scalar, _) => rows!(scalar, 1),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, 4..) => rows!(x86::avx2, 4),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, 2..) => rows!(x86::avx2, 2),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => rows!(x86::avx2, 1),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, 8..) => rows!(x86::avx512, 8),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, 4..) => rows!(x86::avx512, 4),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, 2..) => rows!(x86::avx512, 2),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, _) => rows!(x86::avx512, 1),
        }
    }

    /// See [`math::quantise`].
    pub(super) fn quantise(self, x: &[f32], quants: &mut [i8], scales: &mut [f32], biases: &mut [i32]) {
        per_isa!(self, math::quantise, (x: &[f32], quants: &mut [i8], scales: &mut [f32], biases: &mut [i32]));
    }

    /// See [`math::rms_norm`].
    pub(super) fn rms_norm(self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        per_isa!(self, math::rms_norm, (x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]));
    }

    /// See [`math::swiglu`].
    pub(super) fn swiglu(self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        per_isa!(self, math::swiglu, (gate: &[f32], up: &[f32], out: &mut [f32]));
    }

    /// See [`math::add`].
    pub(super) fn add(self, x: &mut [f32], y: &[f32]) {
        per_isa!(self, math::add, (x: &mut [f32], y: &[f32]));
    }

    /// See [`math::rotate`].
    pub(super) fn rotate(self, row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        per_isa!(self, math::rotate, (row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]));
    }

    /// See [`attention::attend`].
    pub(super) fn attend(
        self,
        heads: &Heads<'_>,
        start: usize,
        queries: (&[f32], usize),
        out: (&mut [f32], usize),
        scratch: &mut Scratch,
    ) {
        per_isa!(self, attention::attend, (
            heads: &Heads<'_>, start: usize, queries: (&[f32], usize), out: (&mut [f32], usize), scratch: &mut Scratch
        ));
    }
}

/// The reference: what every other kernel computes. `unsafe` only to be called like them.
unsafe fn scalar<const M: usize>(
    (scales, quants): (&[u8], &[u8]),
    inputs: [ActivationRow<'_>; M],
) -> [[f32; GROUP]; M] {
    let mut out = [[0.0; GROUP]; M];
    let blocks = scales.chunks_exact(SCALE_BYTES).zip(quants.chunks_exact(QUANT_BYTES));
    for (block, (scales, quants)) in blocks.enumerate() {
        let scales: [f32; GROUP] = std::array::from_fn(|lane| {
            half::f16::from_le_bytes([scales[2 * lane], scales[2 * lane + 1]]).to_f32()
        });
        for (out, input) in out.iter_mut().zip(&inputs) {
            let mut sums = [0i32; GROUP];
            let activations = input.quants[block * BLOCK..][..BLOCK].chunks_exact(PIECE);
            for (piece, activations) in quants.chunks_exact(GROUP * PIECE).zip(activations) {
                for (sum, weights) in sums.iter_mut().zip(piece.chunks_exact(PIECE)) {
                    for (weight, activation) in weights.iter().zip(activations) {
                        *sum += i32::from(*weight as i8) * i32::from(*activation);
                    }
                }
            }
            for lane in 0..GROUP {
                out[lane] += sums[lane] as f32 * (scales[lane] * input.scales[block]);
            }
        }
    }
    out
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{ActivationRow, BLOCK, GROUP, PIECE, QUANT_BYTES, SCALE_BYTES};

    const PIECES: usize = BLOCK / PIECE;

    /// Four neighbouring quants, as the bits of an `i32`.
    #[inline(always)]
    unsafe fn four(input: &ActivationRow<'_>, at: usize) -> i32 {
        debug_assert!(at + 4 <= input.quants.len());
        // SAFETY: the caller stays inside the row.
        unsafe { input.quants.as_ptr().add(at).cast::<i32>().read_unaligned() }
    }

    /// Eight rows of a group at a time: `|w| * (a with w's sign)`, pairs summed to 16 bits (at most
    /// 2 * 127 * 127, which fits), pairs of those to 32.
    ///
    /// # Safety
    /// AVX2 and F16C; scales and quants of as many blocks as each input has.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn avx2<const M: usize>(
        (scales, quants): (&[u8], &[u8]),
        inputs: [ActivationRow<'_>; M],
    ) -> [[f32; GROUP]; M] {
        let blocks = scales.len() / SCALE_BYTES;
        debug_assert!(inputs.iter().all(|row| row.scales.len() == blocks));
        let ones = _mm256_set1_epi16(1);
        let mut out = [[0.0; GROUP]; M];
        for half in 0..2 {
            let mut totals = [_mm256_setzero_ps(); M];
            for block in 0..blocks {
                let mut sums = [_mm256_setzero_si256(); M];
                for piece in 0..PIECES {
                    let at = block * QUANT_BYTES + piece * GROUP * PIECE + half * 32;
                    // SAFETY: inside the block's quants; unaligned loads.
                    let weights = unsafe { _mm256_loadu_si256(quants.as_ptr().add(at).cast()) };
                    let magnitudes = _mm256_abs_epi8(weights);
                    for (sum, input) in sums.iter_mut().zip(&inputs) {
                        // SAFETY: inside the row's block.
                        let four = unsafe { four(input, block * BLOCK + piece * PIECE) };
                        let signed = _mm256_sign_epi8(_mm256_set1_epi32(four), weights);
                        let pairs = _mm256_maddubs_epi16(magnitudes, signed);
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
                // SAFETY: inside the block's scales.
                let halves =
                    unsafe { _mm_loadu_si128(scales.as_ptr().add(block * SCALE_BYTES + half * 16).cast()) };
                let scales = _mm256_cvtph_ps(halves);
                for ((total, sum), input) in totals.iter_mut().zip(sums).zip(&inputs) {
                    let scale = _mm256_mul_ps(scales, _mm256_set1_ps(input.scales[block]));
                    *total = _mm256_add_ps(*total, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
                }
            }
            for (out, total) in out.iter_mut().zip(totals) {
                // SAFETY: eight floats from `half * 8` on.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(half * 8), total) };
            }
        }
        out
    }

    /// Sixteen rows of a group at a time. The instruction multiplies unsigned by signed bytes: the
    /// weights go in 128 too large, and the sums start from the input's bias, which takes that back.
    ///
    /// # Safety
    /// AVX-512 F, BW and VNNI; scales and quants of as many blocks as each input has.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn avx512<const M: usize>(
        (scales, quants): (&[u8], &[u8]),
        inputs: [ActivationRow<'_>; M],
    ) -> [[f32; GROUP]; M] {
        let blocks = scales.len() / SCALE_BYTES;
        debug_assert!(inputs.iter().all(|row| row.scales.len() == blocks));
        let top_bits = _mm512_set1_epi8(i8::MIN);
        let mut totals = [_mm512_setzero_ps(); M];
        for block in 0..blocks {
            let mut sums: [__m512i; M] = std::array::from_fn(|m| _mm512_set1_epi32(inputs[m].biases[block]));
            for piece in 0..PIECES {
                let at = block * QUANT_BYTES + piece * GROUP * PIECE;
                // SAFETY: inside the block's quants; unaligned loads.
                let signed = unsafe { _mm512_loadu_si512(quants.as_ptr().add(at).cast()) };
                let weights = _mm512_xor_si512(signed, top_bits);
                for (sum, input) in sums.iter_mut().zip(&inputs) {
                    // SAFETY: inside the row's block.
                    let four = unsafe { four(input, block * BLOCK + piece * PIECE) };
                    *sum = _mm512_dpbusd_epi32(*sum, weights, _mm512_set1_epi32(four));
                }
            }
            // SAFETY: inside the block's scales.
            let halves = unsafe { _mm256_loadu_si256(scales.as_ptr().add(block * SCALE_BYTES).cast()) };
            let scales = _mm512_cvtph_ps(halves);
            for ((total, sum), input) in totals.iter_mut().zip(sums).zip(&inputs) {
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(input.scales[block]));
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
}
