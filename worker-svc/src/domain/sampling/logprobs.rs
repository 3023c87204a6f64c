//! Log-probabilities of the raw logits.
//!
//! logprob(t) = (logit(t) - max) - ln(sum over all u of e^(logit(u) - max)).

use super::exp::exp;
use super::highest::{highest, max, token_of};

/// Terms summed in f32 before the sum goes to f64: keeps its relative error below 2^-18.
const BLOCK: usize = 1024;
/// Sums carried side by side, so that the loop is vector code.
const LANES: usize = 16;

/// The log-softmax of a logits vector.
pub(super) struct LogSoftmax<'a> {
    logits: &'a [f32],
    max: f32,
    log_sum: f64,
}

impl<'a> LogSoftmax<'a> {
    /// Of logits that are neither NaN nor +inf, one of them above -inf.
    pub(super) fn of(logits: &'a [f32]) -> Self {
        let max = max(logits);
        let sum: f64 = logits.chunks(BLOCK).map(|block| f64::from(exp_sum(block, max))).sum();
        Self { logits, max, log_sum: sum.ln() }
    }

    /// Log-probability of a token of the vocabulary, finite.
    pub(super) fn at(&self, token: u32) -> f32 {
        let shifted = f64::from(self.logits[token as usize]) - f64::from(self.max);
        ((shifted - self.log_sum) as f32).max(f32::MIN)
    }

    /// The `count` likeliest tokens with their log-probabilities, likeliest first, equals by ascending
    /// id; without those of logit -inf.
    pub(super) fn highest(&self, count: usize, keys: &mut Vec<u64>) -> Vec<(u32, f32)> {
        highest(self.logits, count, keys);
        keys.sort_unstable();
        keys.iter().map(|key| (token_of(*key), self.at(token_of(*key)))).collect()
    }
}

fn exp_sum(logits: &[f32], max: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (strides, rest) = logits.as_chunks::<LANES>();
    for stride in strides {
        for (lane, logit) in lanes.iter_mut().zip(stride) {
            *lane += exp(logit - max);
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|logit| exp(logit - max)).sum::<f32>()
}
