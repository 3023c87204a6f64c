//! Rows of activations, quantised and laid out for the kernels.
//!
//! Rows go in tiles of [`TILE`], so that a kernel finds what it needs of all rows of a tile side by
//! side. Each row is quantised alone.

use super::kernels::Kernels;
use super::packed::PIECE;
use super::tensor::BLOCK;

/// Rows of a tile.
pub(super) const TILE: usize = 8;

/// One block of the rows of a tile.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct TileBlock {
    /// Quants from -127 to 127: `[piece of four columns][row]`.
    pub(super) quants: [[[i8; PIECE]; TILE]; BLOCK / PIECE],
    /// What a quant of the row is worth.
    pub(super) scales: [f32; TILE],
    /// -128 times the sum of the row's quants: what kernels that read weights as unsigned, 128 too
    /// large, start from.
    pub(super) biases: [i32; TILE],
}

/// Quantised rows.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    /// `[tile][block]`; the slots of the last tile beyond `rows` are of no meaning.
    blocks: Vec<TileBlock>,
}

impl Activations {
    /// Quantises `values`, rows of `cols` elements, in place of what was held before.
    ///
    /// # Panics
    /// When the values are not whole rows, or a row is not whole blocks.
    pub fn quantise(&mut self, kernels: Kernels, values: &[f32], cols: usize) {
        assert!(
            cols.is_multiple_of(BLOCK) && values.len().is_multiple_of(cols),
            "whole rows of whole blocks"
        );
        (self.rows, self.cols) = (values.len() / cols, cols);
        self.blocks.resize(self.rows.div_ceil(TILE) * (cols / BLOCK), TileBlock::default());
        let tiles = self.blocks.chunks_exact_mut(cols / BLOCK);
        for (rows, tile) in values.chunks(TILE * cols).zip(tiles) {
            for (slot, row) in rows.chunks_exact(cols).enumerate() {
                kernels.quantise(row, slot, tile);
            }
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The blocks of rows `TILE * tile ..`.
    pub(super) fn tile(&self, tile: usize) -> &[TileBlock] {
        let blocks = self.cols / BLOCK;
        &self.blocks[tile * blocks..][..blocks]
    }
}
