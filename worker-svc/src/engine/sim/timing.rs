//! How long a pass takes.
//!
//! ```text
//! time(pass) = (prefill + decode) / speedup                       milliseconds
//!   prefill  = max(0, P(T))       when T > 0, else 0;    T = tokens of prefill chunks
//!   decode   = max(floor, D(u))   when the pass has decode rows, else 0
//!   u        = min(1, tokens of the decoding sequences / tokens the pool holds)       mode rows
//!              min(1, blocks in use, each once / blocks of the pool)                  mode pass
//! ```
//!
//! A chunk of one token that is not the first of its sequence is a decode row; any other is a
//! prefill chunk. Both curves are polynomials of degree 2 ([`Polynomial`]); a fixed time is a constant
//! one. Source of form and default coefficients: the timing model of NVIDIA Dynamo's mock engine, which mode pass is.

use std::collections::HashSet;
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

/// What a decode step grows with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It grows with the tokens of the sequences that decode: what several share counts for each.
    Rows,
    /// It grows with the blocks in use, each counted once, those of prompts in the pass as well.
    Pass,
}

/// What decides the time of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassLoad {
    /// Tokens of prefill chunks.
    pub prefill_tokens: usize,
    /// Sequences that decode.
    pub decode_rows: usize,
    /// Tokens of these sequences; mode rows asks for them.
    pub decode_tokens: usize,
    /// Blocks in use, each once; mode pass asks for them.
    pub blocks: usize,
}

impl PassLoad {
    /// Of these chunks; the blocks in use are those of their tables, counted where `mode` asks for them.
    pub(super) fn of(mode: Mode, chunks: &[Chunk<'_>]) -> Self {
        let is_decode = |chunk: &&Chunk<'_>| chunk.start > 0 && chunk.tokens.len() == 1;
        let counted = if mode == Mode::Pass { chunks } else { &[] };
        let blocks: HashSet<_> = counted.iter().flat_map(|chunk| chunk.blocks).collect();
        Self {
            prefill_tokens: chunks.iter().filter(|c| !is_decode(c)).map(|c| c.tokens.len()).sum(),
            decode_rows: chunks.iter().filter(is_decode).count(),
            decode_tokens: chunks.iter().filter(is_decode).map(|c| c.start + 1).sum(),
            blocks: blocks.len(),
        }
    }
}

/// Time of a pass on a pool of `blocks`.
pub fn pass_time(config: &SimConfig, load: &PassLoad, blocks: usize) -> Duration {
    let mut milliseconds = 0.0;
    if load.prefill_tokens > 0 {
        milliseconds += config.prefill_ms.at(load.prefill_tokens as f64).max(0.0);
    }
    if load.decode_rows > 0 {
        let share = match config.mode {
            Mode::Rows => load.decode_tokens as f64 / (blocks.max(1) * config.block_size) as f64,
            Mode::Pass => load.blocks as f64 / blocks.max(1) as f64,
        };
        milliseconds += config.decode_ms.at(share.min(1.0)).max(config.decode_floor_ms);
    }
    // A time that no Duration holds, from absurd coefficients, is the longest one.
    Duration::try_from_secs_f64(milliseconds / 1e3 / config.speedup).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{BlockId, SeqId};

    fn chunk(start: usize, tokens: &[u32]) -> Chunk<'_> {
        Chunk { seq: SeqId(0), tokens, start, blocks: &[], wants_logits: true }
    }

    /// In a pool of as many tokens, in blocks of 10.
    fn milliseconds(config: &SimConfig, chunks: &[Chunk<'_>], pool_tokens: usize) -> f64 {
        let config = SimConfig { block_size: 10, ..config.clone() };
        pass_time(&config, &PassLoad::of(config.mode, chunks), pool_tokens / 10).as_secs_f64() * 1e3
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
    fn in_pass_mode_a_decode_step_goes_by_the_blocks_in_use() {
        let config = SimConfig { mode: Mode::Pass, ..SimConfig::default() };
        let (prompt, shared, own) = (vec![0; 100], [BlockId(1), BlockId(2)], [BlockId(1), BlockId(3)]);
        // A prompt alone is no decode step: 16.50142 + 1.518344 + 0.004209989
        let first = Chunk { blocks: &shared, ..chunk(0, &prompt) };
        assert_close(milliseconds(&config, &[first], 100), 18.023_974);
        // Shared blocks count once: D(0.3) is 5.74 + 16.203 - 2.3166
        let rows = [Chunk { blocks: &shared, ..chunk(19, &[0]) }, Chunk { blocks: &own, ..chunk(19, &[0]) }];
        assert_close(milliseconds(&config, &rows, 100), 19.6264);
        // Those of a prompt beside it count as well: P(100) + D(0.2), with 5.74 + 10.802 - 1.0296
        let mixed = [
            Chunk { blocks: &shared[..1], ..chunk(9, &[0]) },
            Chunk { blocks: &shared[1..], ..chunk(0, &prompt) },
        ];
        assert_close(milliseconds(&config, &mixed, 100), 33.536_374);
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
