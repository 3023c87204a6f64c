//! How long a pass takes.
//!
//! ```text
//! time(pass) = (prefill + decode) / speedup                       milliseconds
//!   prefill  = max(0, P(T))       when T > 0, else 0;    T = tokens of prefill chunks
//!   decode   = max(floor, D(u))   when the pass has decode rows, else 0
//!   u        = min(1, tokens of the decoding sequences / tokens the pool holds)
//! ```
//!
//! A chunk of one token that is not the first of its sequence is a decode row; any other is a
//! prefill chunk. Both curves are polynomials of degree 2 ([`Polynomial`]); a fixed time is a constant
//! one. Source of form and default coefficients: the timing model of NVIDIA Dynamo's mock engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SimConfig;
use crate::ports::Chunk;

/// `constant + linear * x + quadratic * x^2`; absent coefficients are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Polynomial {
    /// Value at 0.
    pub constant: f64,
    /// Coefficient of x.
    pub linear: f64,
    /// Coefficient of x^2.
    pub quadratic: f64,
}

impl Polynomial {
    /// The same value everywhere.
    pub fn fixed(constant: f64) -> Self {
        Self { constant, ..Self::default() }
    }

    /// The value at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.constant + x * (self.linear + x * self.quadratic)
    }

    pub(super) fn is_finite(&self) -> bool {
        [self.constant, self.linear, self.quadratic].iter().all(|c| c.is_finite())
    }
}

/// Time of a pass over `chunks` with a pool of `pool_tokens`.
pub(super) fn pass_time(config: &SimConfig, chunks: &[Chunk<'_>], pool_tokens: usize) -> Duration {
    let is_decode = |chunk: &&Chunk<'_>| chunk.start > 0 && chunk.tokens.len() == 1;
    let prefill_tokens: usize = chunks.iter().filter(|c| !is_decode(c)).map(|c| c.tokens.len()).sum();
    let decode_tokens: usize = chunks.iter().filter(is_decode).map(|c| c.start + 1).sum();

    let mut milliseconds = 0.0;
    if prefill_tokens > 0 {
        milliseconds += config.prefill_ms.at(prefill_tokens as f64).max(0.0);
    }
    if decode_tokens > 0 {
        let share = (decode_tokens as f64 / pool_tokens.max(1) as f64).min(1.0);
        milliseconds += config.decode_ms.at(share).max(config.decode_floor_ms);
    }
    // A time that no Duration holds, from absurd coefficients, is the longest one.
    Duration::try_from_secs_f64(milliseconds / 1e3 / config.speedup).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SeqId;

    fn chunk(start: usize, tokens: &[u32]) -> Chunk<'_> {
        Chunk { seq: SeqId(0), tokens, start, blocks: &[], wants_logits: true }
    }

    fn milliseconds(config: &SimConfig, chunks: &[Chunk<'_>], pool_tokens: usize) -> f64 {
        pass_time(config, chunks, pool_tokens).as_secs_f64() * 1e3
    }

    fn assert_close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-5, "{value} instead of {expected}");
    }

    #[test]
    fn the_formula_at_known_points() {
        let config = SimConfig::default();
        let prompt = vec![0u32; 1000];
        // 16.50142 + 15.18344 + 0.4209989
        assert_close(milliseconds(&config, &[chunk(0, &prompt)], 10_000), 32.105_859);
        // Two chunks of one pass are one T.
        let halves = [chunk(0, &prompt[..500]), chunk(32, &prompt[..500])];
        assert_close(milliseconds(&config, &halves, 10_000), 32.105_859);
        // u = 0.5: 5.74 + 27.005 - 6.435
        assert_close(milliseconds(&config, &[chunk(4_999, &[0])], 10_000), 26.31);
        // u is at most 1: 5.74 + 54.01 - 25.74
        assert_close(milliseconds(&config, &[chunk(4_999, &[0])], 100), 34.01);
        // Prefill and decode of one pass add up; a first token alone is prefill.
        let mixed = [chunk(4_999, &[0]), chunk(0, &[0])];
        assert_close(milliseconds(&config, &mixed, 10_000), 26.31 + 16.516_603_8);
        assert_close(milliseconds(&config, &[], 10_000), 0.0);
    }

    #[test]
    fn fixed_times_floor_and_speedup() {
        let fixed = SimConfig {
            prefill_ms: Polynomial::fixed(8.0),
            decode_ms: Polynomial::fixed(0.25),
            speedup: 4.0,
            ..SimConfig::default()
        };
        assert_close(milliseconds(&fixed, &[chunk(0, &[1, 2, 3])], 10), 2.0);
        assert_close(milliseconds(&fixed, &[chunk(5, &[1])], 10), 0.25);
        let negative = SimConfig { prefill_ms: Polynomial::fixed(-8.0), ..fixed };
        assert_close(milliseconds(&negative, &[chunk(0, &[1, 2, 3])], 10), 0.0);
    }
}
