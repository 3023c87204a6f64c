//! Numbers that look random and are the same everywhere: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
//! OOPSLA 2014), so that a seed gives the same run on every machine and with every version of every crate.

use std::time::Duration;

/// Increment of SplitMix64: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's output function: a bijection whose every output bit depends on every input bit.
pub(crate) fn scramble(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of draws.
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(scramble(seed))
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        scramble(self.0)
    }

    /// At least 0, below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// At least 0, below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.unit() * bound as f64) as u64
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_and_have_their_means() {
        let draw = |seed| {
            let mut draws = Draws::new(seed);
            (0..10_000).map(|_| draws.exponential(Duration::from_secs(1)).as_secs_f64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let mean = draw(7).iter().sum::<f64>() / 1e4;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        assert!((0..1000).all(|_| Draws::new(3).below(5) < 5));
        assert_eq!(Draws::new(3).below(0), 0);
    }
}
