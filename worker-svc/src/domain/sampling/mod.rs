//! Sampling: a pure function of logits, history, parameters and a numbered draw.
//!
//! The same arguments give the same token, bit for bit, on every machine: a sequence that
//! continues on another worker has the tokens it would have had. Three choices make it so:
//!
//! - randomness is counted, not consumed: draw `position` of `choice` is a block of Philox under
//!   the key `seed` ([`Draw`]), whatever was drawn before;
//! - the exponential is our own ([`exp`]), not the platform's;
//! - probabilities are integers in units of 2^-30 of the likeliest token's, so that their sums do not
//!   depend on the order of addition ([`weights`]). A token less likely than that is never drawn.
//!
//! Order of effects, which is vLLM's: stop and end tokens masked while `min_tokens` is not reached, logit
//! bias, repetition, frequency and presence penalty; temperature 0 takes the highest logit, else
//! temperature, min-p, top-k, top-p over what min-p and top-k left, draw. Equal logits (for
//! top-p: equal weights) rank by token id, lowest first.
//!
//! Log-probabilities are the log-softmax of the raw logits, before any of this.

mod adjust;
mod exp;
mod highest;
mod logprobs;
mod params;
mod philox;
mod weights;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::domain::sampled::Sampled;

pub use params::{
    BIAS_LIMIT, GREEDY_BELOW, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_REPETITION_PENALTY, MAX_STOP_TOKENS,
    MAX_TEMPERATURE, PENALTY_LIMIT, ParamError, SamplingParams,
};

/// The tokens before the one to sample, cut where the prompt ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct History<'a> {
    /// Tokens the request came with.
    pub prompt: &'a [u32],
    /// Tokens generated so far, on this worker or on another one before a migration.
    pub generated: &'a [u32],
}

/// Names one draw: equal draws give equal random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Draw {
    /// Seed of the request.
    pub seed: u64,
    /// Index of the choice (`n` in a request asks for several), from 0.
    pub choice: u32,
    /// Index of the token in its choice, from 0: how many were generated before it.
    pub position: u32,
}

impl Draw {
    /// The draw's 64 random bits: words 0 (low) and 1 of the Philox block with key `seed` and counter
    /// `[position, choice, 0, 0]`.
    fn bits(self) -> u64 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [low, high, ..] = philox::philox4x32_10([self.position, self.choice, 0, 0], key);
        u64::from(high) << 32 | u64::from(low)
    }
}

/// Buffers that [`sample`] reuses; what they held before never matters.
///
/// Bounded by the vocabulary: at most 28 bytes for each of its tokens.
#[derive(Debug, Default)]
pub struct Scratch {
    adjusted: Vec<f32>,
    occurrences: adjust::Occurrences,
    weights: Vec<u32>,
    keys: Vec<u64>,
}

/// Why no token could be sampled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The logits vector has no entry.
    #[error("there are no logits")]
    NoLogits,
    /// A logit is NaN or +inf; -inf is a token that is never chosen.
    #[error("the logit of token {token} is NaN or +inf")]
    InvalidLogit {
        /// The first such token.
        token: u32,
    },
    /// Every token has a logit of -inf, or is masked by `min_tokens`.
    #[error("no token is allowed")]
    NoCandidate,
}

/// Samples the next token from `logits`, one for each id of the vocabulary.
///
/// Total: any logits and any parameters, even those that do not validate, give a token or an error
/// and never a panic. Ids outside the vocabulary are ignored. Once `scratch` has grown to the
/// vocabulary, only `Sampled::top` allocates.
///
/// # Errors
/// [`SampleError`] when the logits allow no token.
pub fn sample(
    logits: &[f32],
    params: &SamplingParams,
    history: History<'_>,
    draw: Draw,
    scratch: &mut Scratch,
) -> Result<Sampled, SampleError> {
    if logits.is_empty() {
        return Err(SampleError::NoLogits);
    }
    if let Some(token) = invalid_logit(logits) {
        return Err(SampleError::InvalidLogit { token });
    }
    let Scratch { adjusted, occurrences, weights, keys } = scratch;
    let adjusted = adjust::adjusted(logits, params, history, occurrences, adjusted);
    let max = highest::max(adjusted);
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NoCandidate);
    }
    let token = if params.is_greedy() {
        first_equal(adjusted, max)
    } else {
        weigh(adjusted, max, params, weights, keys);
        weights::pick(weights, draw.bits())
    };
    let distribution = logprobs::LogSoftmax::of(logits);
    let alternatives = usize::from(params.logprobs.unwrap_or(0).min(MAX_LOGPROBS));
    Ok(Sampled { token, logprob: distribution.at(token), top: distribution.highest(alternatives, keys) })
}

/// Fills `weights` with what the adjusted logits, the highest of them `max`, leave to the draw.
fn weigh(adjusted: &[f32], max: f32, params: &SamplingParams, weights: &mut Vec<u32>, keys: &mut Vec<u64>) {
    weights::fill(weights, adjusted, max, params.temperature.min(MAX_TEMPERATURE));
    weights::keep_min_p(weights, params.min_p);
    weights::keep_top_k(weights, adjusted, params.top_k as usize, keys);
    weights::keep_top_p(weights, params.top_p, keys);
}

/// The first token whose logit is NaN or +inf.
fn invalid_logit(logits: &[f32]) -> Option<u32> {
    let valid = |logit: &f32| *logit < f32::INFINITY;
    // Without an early exit, so that the good case is vector code.
    if logits.iter().fold(true, |all, logit| all & valid(logit)) {
        return None;
    }
    logits.iter().position(|logit| !valid(logit)).map(|token| token as u32)
}

/// The lowest token id that has the value `max`.
fn first_equal(values: &[f32], max: f32) -> u32 {
    values.iter().position(|value| *value == max).unwrap_or(0) as u32
}
