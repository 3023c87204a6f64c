//! Probabilities as integers, what truncates them, and the draw.
//!
//! weight(t) = round(2^30 e^((logit(t) - max) / temperature)), an integer in 0..=2^30; the
//! likeliest token has exactly 2^30. Sums of up to 2^32 of them fit 62 bits and are exact, so no order
//! of addition matters. A token that a truncation removes gets weight 0; the likeliest never is.

use super::exp::exp;
use super::highest::{highest, token_of};

/// Weight of the likeliest token.
pub(super) const ONE: u32 = 1 << 30;
/// Tokens that are passed over at once where there is nothing to find among them.
const STRIDE: usize = 64;

/// Fills `weights` from `logits`, whose highest is `max`, at a temperature above 0.
pub(super) fn fill(weights: &mut Vec<u32>, logits: &[f32], max: f32, temperature: f32) {
    // A slice as long as the logits, not `extend`: that would not become vector code.
    weights.resize(logits.len(), 0);
    for (weight, logit) in weights.iter_mut().zip(logits) {
        *weight = units(exp((logit - max) / temperature));
    }
}

/// Removes tokens with less than `min_p` of the likeliest token's weight.
pub(super) fn keep_min_p(weights: &mut [u32], min_p: f32) {
    // NaN is off.
    if min_p > 0.0 {
        let least = (min_p.min(1.0) * ONE as f32).ceil() as u32;
        retain(weights, |weight| weight >= least);
    }
}

/// Removes all but the `top_k` tokens of the highest `logits`; 0 is off.
pub(super) fn keep_top_k(weights: &mut [u32], logits: &[f32], top_k: usize, keys: &mut Vec<u64>) {
    if top_k == 0 || top_k >= logits.len() {
        return;
    }
    highest(logits, top_k, keys);
    let Some(last) = keys.iter().max().map(|key| token_of(*key) as usize) else { return };
    let bar = logits[last];
    for (weight, logit) in weights[..=last].iter_mut().zip(logits) {
        *weight = if *logit >= bar { *weight } else { 0 };
    }
    for (weight, logit) in weights[last + 1..].iter_mut().zip(&logits[last + 1..]) {
        *weight = if *logit > bar { *weight } else { 0 };
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
    // At most 2^30, the weight of the likeliest.
    let light = ((total - needed) / weights.len() as u64) as u32;
    keys.clear();
    for (stride, start) in weights.chunks(STRIDE).zip((0u32..).step_by(STRIDE)) {
        if stride.iter().fold(false, |any, weight| any | (*weight > light)) {
            let heavy = stride.iter().zip(start..).filter(|(weight, _)| **weight > light);
            keys.extend(heavy.map(|(weight, token)| weight_key(*weight, token)));
        }
    }
    let Some(last) = last_needed(keys, needed).map(|key| token_of(key) as usize) else { return };
    let bar = weights[last];
    let (up_to_last, after) = weights.split_at_mut(last + 1);
    retain(up_to_last, |weight| weight >= bar);
    retain(after, |weight| weight > bar);
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

/// round(2^30 share) for a share in [0, 1], ties to even, without the conversion instruction, which has
/// no vector form here.
///
/// Adding 1.5 * 2^23 rounds to an integer in the low bits. Two rounds of 15 bits, because an f32
/// holds only 24: all differences are exact.
#[inline]
fn units(share: f32) -> u32 {
    const ROUND: f32 = 12_582_912.0;
    const HALF: f32 = (1 << 15) as f32;
    let scaled = share * HALF;
    let high = scaled + ROUND;
    let low = (scaled - (high - ROUND)) * HALF + ROUND;
    let integer = |rounded: f32| rounded.to_bits().wrapping_sub(ROUND.to_bits());
    (integer(high) << 15).wrapping_add(integer(low))
}

/// Sum of weights. It fits; wrapping addition is vector code in builds with overflow checks too.
fn total(weights: &[u32]) -> u64 {
    weights.iter().fold(0, |sum: u64, weight| sum.wrapping_add(u64::from(*weight)))
}

/// Removes the tokens whose weight `keeps` refuses.
fn retain(weights: &mut [u32], keeps: impl Fn(u32) -> bool) {
    for weight in weights {
        *weight = if keeps(*weight) { *weight } else { 0 };
    }
}

/// A key that sorts tokens heaviest first, equal ones by ascending id.
fn weight_key(weight: u32, token: u32) -> u64 {
    u64::from(!weight) << 32 | u64::from(token)
}

/// The weight of a key made by [`weight_key`].
fn weight_of(key: u64) -> u32 {
    !(key >> 32) as u32
}

/// The key at which the weights of `keys`, in key order, first sum up to `needed`.
fn last_needed(mut keys: &mut [u64], mut needed: u64) -> Option<u64> {
    while keys.len() > 1 {
        let middle = keys.len() / 2;
        keys.select_nth_unstable(middle);
        let (head, tail) = keys.split_at_mut(middle);
        let head_sum = head.iter().fold(0, |sum: u64, key| sum.wrapping_add(u64::from(weight_of(*key))));
        if head_sum >= needed {
            keys = head;
        } else {
            needed -= head_sum;
            keys = tail;
        }
    }
    keys.first().copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_likeliest_weighs_one() {
        assert_eq!(units(1.0), ONE);
        assert_eq!(units(0.0), 0);
        let mut weights = vec![9; 2];
        fill(&mut weights, &[2.0, 5.0, f32::NEG_INFINITY], 5.0, 0.5);
        assert_eq!((weights[1], weights[2]), (ONE, 0));
    }

    proptest! {
        #[test]
        fn units_round_to_the_nearest(share in 0f32..=1.0, small in 0f32..=1e-6) {
            for share in [share, small] {
                prop_assert_eq!(f64::from(units(share)), (f64::from(share) * f64::from(ONE)).round_ties_even());
            }
        }

        /// The nucleus is the shortest heaviest-first prefix with the mass, whatever the weights.
        #[test]
        fn the_nucleus_equals_a_full_sort(
            weights in prop::collection::vec(prop_oneof![0..=ONE, 0u32..20, Just(7)], 1..400), top_p in 0f32..1.0,
        ) {
            let mut weights = weights;
            weights[0] = ONE;
            let mut order: Vec<usize> = (0..weights.len()).collect();
            order.sort_by_key(|token| (!weights[*token], *token));
            let needed = (f64::from(top_p) * total(&weights) as f64).ceil().max(1.0) as u64;
            let mut expected = vec![0; weights.len()];
            let mut sum = 0;
            for token in order {
                if sum < needed {
                    expected[token] = weights[token];
                    sum += u64::from(weights[token]);
                }
            }
            keep_top_p(&mut weights, top_p, &mut Vec::new());
            prop_assert_eq!(weights, expected);
        }
    }
}
