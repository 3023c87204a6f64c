//! Rows of activations, quantised for the kernels.

use super::kernels::Kernels;
use super::tensor::BLOCK;

/// `rows` × `cols` quants, with a scale and a bias per row and block. Each row is quantised alone.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    quants: Vec<i8>,
    scales: Vec<f32>,
    biases: Vec<i32>,
}

/// One row of [`Activations`].
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivationRow<'a> {
    /// `cols` quants from -127 to 127.
    pub(super) quants: &'a [i8],
    /// A scale per block.
    pub(super) scales: &'a [f32],
    /// Per block -128 times the sum of the quants: what kernels that read weights as unsigned, 128
    /// too large, start from.
    pub(super) biases: &'a [i32],
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
        let blocks = values.len() / BLOCK;
        (self.rows, self.cols) = (values.len() / cols, cols);
        self.quants.resize(values.len(), 0);
        self.scales.resize(blocks, 0.0);
        self.biases.resize(blocks, 0);
        kernels.quantise(values, &mut self.quants, &mut self.scales, &mut self.biases);
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn row(&self, row: usize) -> ActivationRow<'_> {
        let blocks = self.cols / BLOCK;
        ActivationRow {
            quants: &self.quants[row * self.cols..][..self.cols],
            scales: &self.scales[row * blocks..][..blocks],
            biases: &self.biases[row * blocks..][..blocks],
        }
    }
}
