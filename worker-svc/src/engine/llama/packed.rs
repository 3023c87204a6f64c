//! Q8_0 matrices in the order in which the kernels read them.
//!
//! Rows go in groups of [`GROUP`] (the last one padded with zeros), so that one vector register
//! holds the same four columns of all rows of a group and every lane is one output element. A group
//! of `cols / 32` blocks is
//!
//! - scales: per block 16 × f16, padded to a multiple of 64 bytes;
//! - quants: per block 8 × 64 bytes; bytes `4 r .. 4 r + 4` of piece `c` are columns `4 c .. 4 c + 4`
//!   of row `r`.
//!
//! A value is `scale * quant`, with quants from -127 to 127: -128 does not occur, for its products
//! would overflow the 16-bit sums of the AVX2 kernel.

use half::f16;

use super::tensor::BLOCK;

/// Rows of a group: 32-bit lanes of the widest register.
pub(super) const GROUP: usize = 16;
/// Bytes of the scales of one block of a group.
pub(super) const SCALE_BYTES: usize = GROUP * 2;
/// Bytes of the quants of one block of a group.
pub(super) const QUANT_BYTES: usize = GROUP * BLOCK;
/// Columns of one piece of a block.
pub(super) const PIECE: usize = 4;

/// A weight that cannot be stored: not finite, or beyond the range of the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite;

/// Where a matrix of `rows` × `cols` keeps what, in bytes; `cols` is a multiple of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedShape {
    /// Output elements.
    pub rows: usize,
    /// Input elements.
    pub cols: usize,
}

impl PackedShape {
    /// Blocks of a row.
    pub fn blocks(self) -> usize {
        self.cols / BLOCK
    }

    /// Groups of rows.
    pub fn groups(self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    pub(super) fn quants_offset(self) -> usize {
        (self.blocks() * SCALE_BYTES).next_multiple_of(64)
    }

    /// Bytes of one group.
    pub fn group_bytes(self) -> usize {
        self.quants_offset() + self.blocks() * QUANT_BYTES
    }

    /// Bytes of the matrix: a multiple of 64.
    pub fn bytes(self) -> usize {
        self.groups() * self.group_bytes()
    }

    fn quant_at(self, block: usize, lane: usize, column: usize) -> usize {
        let piece = column / PIECE;
        self.quants_offset() + block * QUANT_BYTES + piece * GROUP * PIECE + lane * PIECE + column % PIECE
    }

    /// Stores one block of a row: 32 quants and their scale.
    fn put(self, group: &mut [u8], lane: usize, block: usize, scale: f16, quants: impl Iterator<Item = i8>) {
        let at = block * SCALE_BYTES + lane * 2;
        group[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        for (column, quant) in quants.enumerate() {
            group[self.quant_at(block, lane, column)] = quant.max(-127) as u8;
        }
    }

    /// Quantises `values`, one row of the matrix, into row `row` of `matrix`: per block
    /// `scale = max |v| / 127` as f16, `quant = round(v / scale)`.
    ///
    /// # Errors
    /// [`NotFinite`] for values that have no such scale.
    pub fn quantise_row(self, matrix: &mut [u8], row: usize, values: &[f32]) -> Result<(), NotFinite> {
        let group = self.group_mut(matrix, row / GROUP);
        for (block, values) in values.chunks_exact(BLOCK).enumerate() {
            let widest = values.iter().fold(0u32, |widest, v| widest.max(v.abs().to_bits()));
            let scale = f16::from_f32(f32::from_bits(widest) / 127.0);
            if !scale.is_finite() {
                return Err(NotFinite);
            }
            let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
            let quants = values.iter().map(|v| (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8);
            self.put(group, row % GROUP, block, scale, quants);
        }
        Ok(())
    }

    /// Copies a row that the file has as Q8_0 (34 bytes a block).
    ///
    /// # Errors
    /// [`NotFinite`] for a scale that is not.
    pub fn copy_row(self, matrix: &mut [u8], row: usize, data: &[u8]) -> Result<(), NotFinite> {
        let group = self.group_mut(matrix, row / GROUP);
        for (block, data) in data.chunks_exact(2 + BLOCK).enumerate() {
            let scale = f16::from_le_bytes([data[0], data[1]]);
            if !scale.is_finite() {
                return Err(NotFinite);
            }
            self.put(group, row % GROUP, block, scale, data[2..].iter().map(|q| *q as i8));
        }
        Ok(())
    }

    fn group_mut(self, matrix: &mut [u8], group: usize) -> &mut [u8] {
        let start = group * self.group_bytes();
        &mut matrix[start..start + self.group_bytes()]
    }
}

/// A packed matrix, borrowing its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    shape: PackedShape,
    bytes: &'a [u8],
}

impl<'a> Packed<'a> {
    /// The matrix that `bytes` hold.
    ///
    /// # Panics
    /// When the bytes are not exactly those of the shape.
    pub fn new(shape: PackedShape, bytes: &'a [u8]) -> Self {
        assert_eq!(bytes.len(), shape.bytes(), "a matrix has the bytes of its shape");
        Self { shape, bytes }
    }

    /// Dimensions.
    pub fn shape(&self) -> PackedShape {
        self.shape
    }

    /// Scales (`blocks * SCALE_BYTES`) and quants (`blocks * QUANT_BYTES`) of a group.
    pub(super) fn group(&self, group: usize) -> (&'a [u8], &'a [u8]) {
        let start = group * self.shape.group_bytes();
        let (scales, quants) =
            self.bytes[start..start + self.shape.group_bytes()].split_at(self.shape.quants_offset());
        (&scales[..self.shape.blocks() * SCALE_BYTES], quants)
    }

    /// Decodes a row: `cols` values.
    ///
    /// # Panics
    /// When the row is outside the matrix.
    pub fn row(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.shape.rows, "row {row} of {}", self.shape.rows);
        let start = row / GROUP * self.shape.group_bytes();
        let group = &self.bytes[start..start + self.shape.group_bytes()];
        let lane = row % GROUP;
        for (block, to) in to.chunks_exact_mut(BLOCK).enumerate() {
            let at = block * SCALE_BYTES + lane * 2;
            let scale = f16::from_le_bytes([group[at], group[at + 1]]).to_f32();
            for (column, to) in to.iter_mut().enumerate() {
                *to = scale * f32::from(group[self.shape.quant_at(block, lane, column)] as i8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantising_errs_by_at_most_half_a_step(
            rows in prop::collection::vec(prop::collection::vec(-4.0f32..4.0, 64), 1..40),
        ) {
            let shape = PackedShape { rows: rows.len(), cols: 64 };
            let mut bytes = vec![0; shape.bytes()];
            for (row, values) in rows.iter().enumerate() {
                shape.quantise_row(&mut bytes, row, values).expect("finite");
            }
            let packed = Packed::new(shape, &bytes);
            let mut decoded = [0.0; 64];
            for (row, values) in rows.iter().enumerate() {
                packed.row(row, &mut decoded);
                for (values, decoded) in values.chunks(32).zip(decoded.chunks(32)) {
                    let widest = values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
                    // Half a step, and the rounding of the scale to 11 bits at the widest value.
                    let bound = widest / 254.0 + widest / 2048.0 + 1e-6;
                    for (v, d) in values.iter().zip(decoded) {
                        prop_assert!((v - d).abs() <= bound, "{v} became {d}");
                    }
                }
            }
        }
    }

    #[test]
    fn infinite_and_absurd_weights_are_refused() {
        let shape = PackedShape { rows: 1, cols: 32 };
        let mut bytes = vec![0; shape.bytes()];
        for value in [f32::NAN, f32::INFINITY, 1e9] {
            let mut row = [0.0; 32];
            row[7] = value;
            assert_eq!(shape.quantise_row(&mut bytes, 0, &row), Err(NotFinite));
        }
    }
}
