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

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use super::activations::{Activations, TILE, TileBlock};
use super::attention::{self, Heads, Scratch};
use super::lanes::Portable;
use super::math;
use super::packed::{GROUP, Packed};

/// Name of the arithmetic. Two engines with equal weights and equal names compute equal bits.
pub const IDENTITY: &str = "q8_0-v1";

/// Tiles of activations that stay in the second-level cache while the weights pass by once.
const TILES_PER_PASS: usize = 16;

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
    ($kernels:expr, $generic:path, $args:tt) => {
        per_isa!($kernels, $generic, $generic, $generic, $args)
    };
    ($kernels:expr, $portable:path, $avx2:path, $avx512:path, ($($arg:ident : $ty:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn avx2($($arg: $ty),*) {
            $avx2($($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512($($arg: $ty),*) {
            $avx512($($arg),*)
        }
        match $kernels.0 {
            Isa::Scalar => $portable($($arg),*),
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
        groups: Range<usize>,
        activations: &Activations,
        out: &mut [&mut [f32]],
    ) {
        let shape = matrix.shape();
        assert_eq!(shape.cols, activations.cols(), "a matrix multiplies rows of its own width");
        assert_eq!(out.len(), activations.rows(), "one output row per activation row");
        assert!(groups.end <= shape.groups(), "groups of this matrix");
        let width = (groups.end * GROUP).min(shape.rows) - (groups.start * GROUP).min(shape.rows);
        assert!(out.iter().all(|row| row.len() == width), "output rows as wide as the groups");
        for (pass, out) in out.chunks_mut(TILES_PER_PASS * TILE).enumerate() {
            for group in groups.clone() {
                let at = (group - groups.start) * GROUP;
                let weights = matrix.group(group);
                for (tile, out) in out.chunks_mut(TILE).enumerate() {
                    self.tile(weights, activations.tile(pass * TILES_PER_PASS + tile), at, out);
                }
            }
        }
    }

    /// Computes one group for the rows of a tile, as many as `out` has: elements `at ..` of each.
    fn tile(self, weights: (&[u8], &[u8]), tile: &[TileBlock], at: usize, out: &mut [&mut [f32]]) {
        fn put<const M: usize>(sums: [[f32; GROUP]; M], at: usize, out: &mut [&mut [f32]]) {
            for (out, sums) in out.iter_mut().zip(&sums) {
                let len = GROUP.min(out.len() - at);
                out[at..at + len].copy_from_slice(&sums[..len]);
            }
        }
        match (self.0, out.len()) {
            (Isa::Scalar, 5..) => put(scalar::multiply::<8>(weights, tile), at, out),
            (Isa::Scalar, 2..) => put(scalar::multiply::<4>(weights, tile), at, out),
            (Isa::Scalar, _) => put(scalar::multiply::<1>(weights, tile), at, out),
            // SAFETY, here and below: a `Kernels` of this kind exists only where the instructions do.
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, 5..) => unsafe {
                put(x86::multiply_avx2::<4, 0>(weights, tile), at, out);
                put(x86::multiply_avx2::<4, 4>(weights, tile), at, &mut out[4..]);
            },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, 3..) => unsafe { put(x86::multiply_avx2::<4, 0>(weights, tile), at, out) },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, 2) => unsafe { put(x86::multiply_avx2::<2, 0>(weights, tile), at, out) },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => unsafe { put(x86::multiply_avx2::<1, 0>(weights, tile), at, out) },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, 5..) => unsafe { put(x86::multiply_avx512::<8>(weights, tile), at, out) },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, 3..) => unsafe { put(x86::multiply_avx512::<4>(weights, tile), at, out) },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, 2) => unsafe { put(x86::multiply_avx512::<2>(weights, tile), at, out) },
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, _) => unsafe { put(x86::multiply_avx512::<1>(weights, tile), at, out) },
        }
    }

    /// See [`math::quantise`].
    pub(super) fn quantise(self, x: &[f32], slot: usize, blocks: &mut [TileBlock]) {
        per_isa!(self, math::quantise, (x: &[f32], slot: usize, blocks: &mut [TileBlock]));
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
        type Rows<'a> = (&'a [f32], usize);
        type RowsMut<'a> = (&'a mut [f32], usize);
        per_isa!(
            self,
            attention::attend::<Portable>,
            attention::attend::<x86::Ymm>,
            attention::attend::<x86::Zmm>,
            (heads: &Heads<'_>, start: usize, queries: Rows<'_>, out: RowsMut<'_>, scratch: &mut Scratch)
        );
    }
}
