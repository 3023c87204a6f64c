//! Probabilities as integers, what truncates them, and the draw.
//!
//! weight(t) = floor(2^30 e^((logit(t) - max) / temperature)), an integer in 0..=2^30; the
//! likeliest token has exactly 2^30. Sums of up to 2^32 of them fit 62 bits and are exact, so no order
//! of addition matters. A token that a truncation removes gets weight 0; the likeliest never is.

use super::exp::exp;
use super::highest::{highest, value_key};

/// Weight of the likeliest token.
pub(super) const ONE: u32 = 1 << 30;
/// Tokens that [`pick`] passes over at once.
const STRIDE: usize = 64;

/// Fills `weights` from `logits`, whose highest is `max`, at a temperature above 0.
pub(super) fn fill(weights: &mut Vec<u32>, logits: &[f32], max: f32, temperature: f32) {
    weights.clear();
    let weight = |logit: &f32| (exp((logit - max) / temperature) * ONE as f32) as i32 as u32;
    weights.extend(logits.iter().map(weight));
}

/// Removes tokens with less than `min_p` of the likeliest token's weight.
pub(super) fn keep_min_p(weights: &mut [u32], min_p: f32) {
    // NaN is off.
    if min_p > 0.0 {
        let least = (min_p.min(1.0) * ONE as f32).ceil() as u32;
        keep(weights, |weight, _| weight >= least);
    }
}

/// Removes all but the `top_k` tokens of the highest `logits`; 0 is off.
pub(super) fn keep_top_k(weights: &mut [u32], logits: &[f32], top_k: usize, keys: &mut Vec<u64>) {
    if top_k == 0 || top_k >= logits.len() {
        return;
    }
    highest(logits, top_k, keys);
    if let Some(last) = keys.iter().max().copied() {
        let logit = |token: u32| logits[token as usize];
        keep(weights, |_, token| value_key(logit(token), token) <= last);
    }
}

/// Removes all but the fewest tokens, heaviest first, that have `top_p` of the total weight.
///
/// Tokens whose weights would not fill the tail that is cut off even if all were as heavy are passed
/// over at once. Among the others the last one to keep is found by quickselect on sums of weights:
/// linear on average, no sort.
pub(super) fn keep_top_p(weights: &mut [u32], top_p: f32, keys: &mut Vec<u64>) {
    if top_p >= 1.0 || top_p.is_nan() {
        return;
    }
    let total = total(weights);
    let needed = ((f64::from(top_p) * total as f64).ceil() as u64).clamp(1, total);
    let light = (total - needed) / weights.len() as u64;
    let heavy = weights.iter().zip(0u32..).filter(|(weight, _)| u64::from(**weight) > light);
    keys.clear();
    keys.extend(heavy.map(|(weight, token)| weight_key(*weight, token)));
    let last = last_needed(keys, needed);
    keep(weights, |weight, token| weight_key(weight, token) <= last);
}

/// The token that `bits` (64 uniform bits) draws in proportion to the weights.
///
/// With r = floor(bits * total / 2^64): the first token, by id, whose cumulated weight exceeds r.
pub(super) fn pick(weights: &[u32], bits: u64) -> u32 {
    let mut rest = ((u128::from(bits) * u128::from(total(weights))) >> 64) as u64;
    for (stride, start) in weights.chunks(STRIDE).zip((0u32..).step_by(STRIDE)) {
        let sum = total(stride);
        if rest >= sum {
            rest -= sum;
            continue;
        }
        for (weight, token) in stride.iter().zip(start..) {
            let weight = u64::from(*weight);
            if rest < weight {
                return token;
            }
            rest -= weight;
        }
    }
    0
}

/// Sum of weights.
fn total(weights: &[u32]) -> u64 {
    weights.iter().map(|weight| u64::from(*weight)).sum()
}

fn keep(weights: &mut [u32], keeps: impl Fn(u32, u32) -> bool) {
    for (weight, token) in weights.iter_mut().zip(0u32..) {
        *weight = if keeps(*weight, token) { *weight } else { 0 };
    }
}

/// A key that sorts tokens heaviest first, equal ones by ascending id.
fn weight_key(weight: u32, token: u32) -> u64 {
    u64::from(!weight) << 32 | u64::from(token)
}

/// The key at which the weights of `keys`, in key order, first sum up to `needed`.
fn last_needed(mut keys: &mut [u64], mut needed: u64) -> u64 {
    while keys.len() > 1 {
        let middle = keys.len() / 2;
        keys.select_nth_unstable(middle);
        let (head, tail) = keys.split_at_mut(middle);
        let head_sum: u64 = head.iter().map(|key| u64::from(!(*key >> 32) as u32)).sum();
        if head_sum >= needed {
            keys = head;
        } else {
            needed -= head_sum;
            keys = tail;
        }
    }
    keys.first().copied().unwrap_or(u64::MAX)
}
