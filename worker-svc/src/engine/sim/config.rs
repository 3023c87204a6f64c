//! Settings of the simulated engine.

use serde::{Deserialize, Serialize};

use super::text::FIRST_RESERVED;
use super::timing::{Mode, Polynomial};
use crate::ports::{KvGeometry, ModelSpec};

/// What a simulated model is and how long it takes. Every field has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimConfig {
    /// Name of the model; another name is another model, with other tokens. Default `sim`.
    pub model_name: String,
    /// Transformer layers: how often a pass can be left. Default 4.
    pub layers: usize,
    /// Key/value heads per layer. Default 2.
    pub kv_heads: usize,
    /// Elements per head; `kv_heads * head_dim` is at least 4. Default 4.
    pub head_dim: usize,
    /// Tokens per block. Default 16.
    pub block_size: usize,
    /// Size of the vocabulary: 256 bytes, 3 special tokens and reserved ones that never come up. Default 259.
    pub vocab_size: usize,
    /// Longest sequence in tokens. Default 32768.
    pub context_length: usize,
    /// Probability that a token wants to be the last one, 0 to 1. Default 0: `max_tokens` governs.
    pub eos_probability: f64,
    /// Which KV is verified before a pass. Default `full`.
    pub verify: Verify,
    /// What a decode step grows with. Default `rows`.
    pub mode: Mode,
    /// Milliseconds of the prefill part of a pass, over its prefill tokens.
    /// Default 16.50142 + 1.518344e-2 T + 4.209989e-7 T^2.
    pub prefill_ms: Polynomial,
    /// Milliseconds of the decode part of a pass, over the share of the pool that is in use, by `mode`.
    /// Default 5.74 + 54.01 u - 25.74 u^2.
    pub decode_ms: Polynomial,
    /// Least milliseconds of a decode part. Default 1.
    pub decode_floor_ms: f64,
    /// Divides every time; above 0. Default 1.
    pub speedup: f64,
}

/// Which KV of earlier positions a pass verifies; always in every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// All earlier positions of each chunk: any wrong KV is found when it is first read. A decode step
    /// costs time linear in the sequence.
    Full,
    /// The last earlier position of each chunk: finds KV that is missing or out of place there.
    Last,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            model_name: "sim".to_owned(),
            layers: 4,
            kv_heads: 2,
            head_dim: 4,
            block_size: 16,
            vocab_size: FIRST_RESERVED as usize,
            context_length: 32_768,
            eos_probability: 0.0,
            verify: Verify::Full,
            mode: Mode::Rows,
            // An 8B model on one H100, as fitted by the mock engine of NVIDIA Dynamo.
            prefill_ms: Polynomial { constant: 16.50142, linear: 1.518344e-2, quadratic: 4.209989e-7 },
            decode_ms: Polynomial { constant: 5.74, linear: 54.01, quadratic: -25.74 },
            decode_floor_ms: 1.0,
            speedup: 1.0,
        }
    }
}

/// A setting that makes no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}: it must be {limit}")]
pub struct SimConfigError {
    /// Name of the setting.
    pub setting: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed, in words.
    pub limit: &'static str,
}

impl SimConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting outside its limits.
    pub fn validate(&self) -> Result<(), SimConfigError> {
        let count = |setting, value: usize, least: usize, limit| {
            require(setting, value.to_string(), value >= least && u32::try_from(value).is_ok(), limit)
        };
        let number = |setting, value: f64, holds, limit| require(setting, value.to_string(), holds, limit);
        let curve = |setting, curve: Polynomial| {
            require(setting, format!("{curve:?}"), curve.is_finite(), "of finite coefficients")
        };
        count("layers", self.layers, 1, "at least 1")?;
        count("kv_heads", self.kv_heads, 1, "at least 1")?;
        count("head_dim", self.head_dim, 1, "at least 1")?;
        let row = self.kv_heads.saturating_mul(self.head_dim);
        count("kv_heads * head_dim", row, 4, "at least 4, to hold a 64-bit hash in pieces")?;
        count("block_size", self.block_size, 1, "at least 1")?;
        count(
            "vocab_size",
            self.vocab_size,
            FIRST_RESERVED as usize,
            "at least 259: bytes and special tokens",
        )?;
        count("context_length", self.context_length, 1, "at least 1")?;
        number(
            "eos_probability",
            self.eos_probability,
            (0.0..=1.0).contains(&self.eos_probability),
            "between 0 and 1",
        )?;
        curve("prefill_ms", self.prefill_ms)?;
        curve("decode_ms", self.decode_ms)?;
        let floor = self.decode_floor_ms;
        number("decode_floor_ms", floor, floor >= 0.0 && floor.is_finite(), "at least 0 and finite")?;
        number("speedup", self.speedup, self.speedup > 0.0 && self.speedup.is_finite(), "above 0 and finite")
    }

    /// Shape of the model's KV.
    pub fn geometry(&self) -> KvGeometry {
        KvGeometry {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            block_size: self.block_size,
        }
    }

    /// BLAKE3 of what decides tokens and KV: name, shape of a token's KV, vocabulary and end probability;
    /// not of times, block size, context length or verification.
    pub fn model_digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for text in ["armature-sim-v1", &self.model_name] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        for count in [self.layers, self.kv_heads, self.head_dim, self.vocab_size] {
            hasher.update(&(count as u64).to_le_bytes());
        }
        hasher.update(&self.eos_probability.to_bits().to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// What the engine says about this model.
    pub(super) fn spec(&self) -> ModelSpec {
        ModelSpec {
            model_digest: self.model_digest(),
            name: self.model_name.clone(),
            vocab_size: self.vocab_size,
            context_length: self.context_length,
            kv: self.geometry(),
            rope: "none".to_owned(),
            kernel: "sim-v1".to_owned(),
            eos_token_ids: vec![super::text::IM_END, super::text::END_OF_TEXT],
            bos_token_id: Some(super::text::IM_START),
        }
    }
}

fn require(
    setting: &'static str,
    value: String,
    holds: bool,
    limit: &'static str,
) -> Result<(), SimConfigError> {
    if holds { Ok(()) } else { Err(SimConfigError { setting, value, limit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_decides_tokens_changes_the_digest() {
        let base = SimConfig::default();
        let same = SimConfig {
            speedup: 9.0,
            block_size: 4,
            context_length: 7,
            verify: Verify::Last,
            ..base.clone()
        };
        assert_eq!(same.model_digest(), base.model_digest());
        let others = [
            SimConfig { model_name: "other".to_owned(), ..base.clone() },
            SimConfig { layers: 5, ..base.clone() },
            SimConfig { kv_heads: 4, head_dim: 2, ..base.clone() },
            SimConfig { vocab_size: 300, ..base.clone() },
            SimConfig { eos_probability: 0.1, ..base.clone() },
        ];
        for other in others {
            assert_ne!(other.model_digest(), base.model_digest());
        }
    }

    #[test]
    fn a_refusal_names_setting_value_and_limit() {
        let refused = |config: SimConfig| config.validate().unwrap_err().to_string();
        SimConfig::default().validate().unwrap();
        assert_eq!(
            refused(SimConfig { layers: 0, ..SimConfig::default() }),
            "layers is 0: it must be at least 1"
        );
        assert_eq!(
            refused(SimConfig { kv_heads: 1, head_dim: 3, ..SimConfig::default() }),
            "kv_heads * head_dim is 3: it must be at least 4, to hold a 64-bit hash in pieces"
        );
        assert_eq!(
            refused(SimConfig { speedup: f64::NAN, ..SimConfig::default() }),
            "speedup is NaN: it must be above 0 and finite"
        );
    }

    #[test]
    fn reads_toml_with_defaults_and_refuses_unknown_keys() {
        let config: SimConfig =
            toml::from_str("model_name = \"m\"\nverify = \"last\"\ndecode_ms = { constant = 2.0 }").unwrap();
        let expected = SimConfig {
            model_name: "m".to_owned(),
            verify: Verify::Last,
            decode_ms: Polynomial::fixed(2.0),
            ..SimConfig::default()
        };
        assert_eq!(config, expected);
        assert!(toml::from_str::<SimConfig>("speed = 2.0").is_err());
    }
}
