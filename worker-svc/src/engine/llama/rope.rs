//! The angles of rotary position encoding, by position.
//!
//! Pair `i` of a head's first `dims` elements (neighbours, as GGUF stores Llama's queries and keys)
//! turns at position `p` by `p / factor * base^(-2 i / dims)`. Angles are computed in f64 by `libm`,
//! which gives the same bits on every machine, and rounded once.

use super::shape::Rope;

/// Cosines and sines of every position seen so far; bounded by the context length.
#[derive(Debug)]
pub(super) struct Angles {
    frequencies: Vec<f64>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    pub(super) fn new(rope: Rope) -> Self {
        let frequency =
            |pair: usize| libm::pow(rope.base, -2.0 * pair as f64 / rope.dims as f64) / rope.factor;
        Self { frequencies: (0..rope.dims / 2).map(frequency).collect(), cos: vec![], sin: vec![] }
    }

    /// Computes the angles of positions `0..positions` that are not there yet.
    pub(super) fn extend_to(&mut self, positions: usize) {
        let known = self.cos.len().checked_div(self.frequencies.len()).unwrap_or(positions);
        for position in known..positions {
            for frequency in &self.frequencies {
                let (sin, cos) = libm::sincos(position as f64 * frequency);
                self.sin.push(sin as f32);
                self.cos.push(cos as f32);
            }
        }
    }

    /// Cosines and sines of a position, a pair each.
    ///
    /// # Panics
    /// When [`Angles::extend_to`] has not reached the position.
    pub(super) fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.frequencies.len()..(position + 1) * self.frequencies.len();
        (&self.cos[range.clone()], &self.sin[range])
    }
}
