//! Sixteen floats side by side, in whatever registers there are.

/// Floats side by side.
pub(super) const LANES: usize = 16;

/// Sixteen floats. Every implementation gives the same bits.
pub(super) trait Lanes: Copy {
    /// The same value in all lanes.
    fn splat(value: f32) -> Self;
    /// The values of an array.
    fn load(from: &[f32; LANES]) -> Self;
    /// Writes the values to an array.
    fn store(self, to: &mut [f32; LANES]);
    /// `self + a * b`, rounded after the product and after the sum.
    fn multiply_add(self, a: Self, b: Self) -> Self;
    /// `to[i][j] = rows[j][i]`.
    fn transpose(rows: [&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]);
}

/// An array, for every machine.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Lanes for Portable {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }

    #[inline(always)]
    fn multiply_add(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + a.0[lane] * b.0[lane]))
    }

    #[inline(always)]
    fn transpose(rows: [&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = std::array::from_fn(|j| rows[j][i]);
        }
    }
}
