use proptest::prelude::*;

use super::*;

/// Logits on a grid of 1/8, so that ties occur and f32 holds them exactly.
fn logits(vocab: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => (-64i32..64).prop_map(|eighths| eighths as f32 / 8.0),
        1 => Just(f32::NEG_INFINITY),
    ];
    prop::collection::vec(logit, vocab)
}

fn tokens(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..60, 0..most)
}

/// Parameters that validate for a vocabulary of 60 or more, in steps of 1/8 where they change logits.
fn params() -> impl Strategy<Value = SamplingParams> {
    let eighths = |range: std::ops::RangeInclusive<i32>| range.prop_map(|n| n as f32 / 8.0);
    let truncation = (
        prop_oneof![Just(0.0), 0.1f32..=2.0],
        prop_oneof![Just(0), 1u32..80],
        prop_oneof![Just(1.0), 0.01f32..=1.0],
        prop_oneof![Just(0.0), 0.0f32..=1.0],
    );
    let penalties = (eighths(-16..=16), eighths(-16..=16), prop_oneof![Just(1.0), Just(0.5), Just(2.0)]);
    let bias = prop::collection::vec((0u32..60, eighths(-80..=80)), 0..4);
    (truncation, any::<bool>(), penalties, bias, 0u32..6, tokens(4), prop::option::of(0u8..=20)).prop_map(
        |((temperature, top_k, top_p, min_p), penalise, penalties, bias, min_tokens, stops, logprobs)| {
            let (presence_penalty, frequency_penalty, repetition_penalty) =
                if penalise { penalties } else { (0.0, 0.0, 1.0) };
            SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                presence_penalty,
                frequency_penalty,
                repetition_penalty,
                logit_bias: if penalise { bias } else { Vec::new() },
                min_tokens,
                end_token_ids: stops.iter().take(1).map(|token| token + 1).collect(),
                stop_token_ids: stops,
                logprobs,
            }
        },
    )
}

fn draw(position: u32) -> Draw {
    Draw { seed: 0x5eed, choice: 0, position }
}

fn sample_once(logits: &[f32], params: &SamplingParams, draw: Draw) -> Result<Sampled, SampleError> {
    sample(logits, params, History::default(), draw, &mut Scratch::default())
}

/// Upper 1e-4 quantile of chi-square with `freedom` degrees (Wilson and Hilferty's approximation).
fn chi_square_limit(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + 3.719 * spread.sqrt()).powi(3)
}

fn chi_square(observed: &[u64], expected: &[f64]) -> f64 {
    let terms = observed.iter().zip(expected).filter(|(_, e)| **e > 0.0);
    terms.map(|(o, e)| (*o as f64 - e).powi(2) / e).sum()
}

#[test]
fn draws_follow_the_distribution_along_every_counter() {
    const DRAWS: u32 = 40_000;
    let logits = [1.0f32, 0.0, 2.0, -1.0, 0.5, 1.5, -0.5, 0.25];
    let params = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let reference = reference::adjusted(&logits, &params, History::default());
    let expected: Vec<f64> =
        reference::probabilities(&reference, &params).unwrap().iter().map(|p| p * f64::from(DRAWS)).collect();
    type Along = fn(u32) -> Draw;
    let along: [Along; 3] = [
        |i| Draw { seed: 7, choice: 0, position: i },
        |i| Draw { seed: 7, choice: i, position: 3 },
        |i| Draw { seed: u64::from(i), choice: 0, position: 3 },
    ];
    for draw in along {
        let mut observed = vec![0u64; logits.len()];
        for i in 0..DRAWS {
            observed[sample_once(&logits, &params, draw(i)).unwrap().token as usize] += 1;
        }
        let statistic = chi_square(&observed, &expected);
        assert!(statistic < chi_square_limit(7.0), "chi-square {statistic}: {observed:?}");
    }
}

#[test]
fn neighbouring_draws_are_independent() {
    const PAIRS: u32 = 40_000;
    let logits = [0.0f32; 8];
    let params = SamplingParams::default();
    let at = |choice, position| {
        sample_once(&logits, &params, Draw { seed: 11, choice, position }).unwrap().token as usize
    };
    let mut positions = vec![0u64; 64];
    let mut choices = vec![0u64; 64];
    for i in 0..PAIRS {
        positions[at(0, 2 * i) * 8 + at(0, 2 * i + 1)] += 1;
        choices[at(2 * i, 5) * 8 + at(2 * i + 1, 5)] += 1;
    }
    let expected = vec![f64::from(PAIRS) / 64.0; 64];
    for observed in [positions, choices] {
        let statistic = chi_square(&observed, &expected);
        assert!(statistic < chi_square_limit(63.0), "chi-square {statistic}");
    }
}

/// Frozen: a change here changes the tokens of every seeded request.
#[test]
fn golden_tokens() {
    let logits: Vec<f32> = (0..1_000).map(|i| ((i * 37 % 101) as f32) / 16.0).collect();
    let params = SamplingParams { temperature: 0.9, top_p: 0.95, top_k: 200, ..SamplingParams::default() };
    let tokens: Vec<u32> = (0..8).map(|i| sample_once(&logits, &params, draw(i)).unwrap().token).collect();
    assert_eq!(tokens, [434, 663, 584, 221, 655, 120, 491, 655]);
}

#[test]
fn greedy_takes_the_lowest_of_equal_logits() {
    let sampled = sample_once(&[0.0, 3.0, 3.0, -1.0], &SamplingParams::greedy(), draw(0)).unwrap();
    assert_eq!((sampled.token, sampled.top), (1, vec![]));
}

#[test]
fn ties_at_a_cut_keep_the_lowest_ids() {
    let logits = [1.0f32; 10];
    let seen = |params: SamplingParams| -> std::collections::BTreeSet<u32> {
        (0..500).map(|i| sample_once(&logits, &params, draw(i)).unwrap().token).collect()
    };
    assert_eq!(seen(SamplingParams { top_k: 3, ..SamplingParams::default() }), [0, 1, 2].into());
    assert_eq!(seen(SamplingParams { top_p: 0.35, ..SamplingParams::default() }), [0, 1, 2, 3].into());
}

#[test]
fn unusable_logits_are_typed_errors() {
    let params = SamplingParams::default();
    assert_eq!(sample_once(&[], &params, draw(0)), Err(SampleError::NoLogits));
    for bad in [f32::NAN, f32::INFINITY] {
        assert_eq!(sample_once(&[0.0, bad], &params, draw(0)), Err(SampleError::InvalidLogit { token: 1 }));
    }
    assert_eq!(sample_once(&[f32::NEG_INFINITY; 3], &params, draw(0)), Err(SampleError::NoCandidate));
    let masked = SamplingParams { min_tokens: 1, stop_token_ids: vec![0, 1], ..params };
    assert_eq!(sample_once(&[0.0, 1.0], &masked, draw(0)), Err(SampleError::NoCandidate));
}

#[test]
fn stop_tokens_are_masked_only_until_min_tokens() {
    let params = SamplingParams { min_tokens: 2, stop_token_ids: vec![1], ..SamplingParams::greedy() };
    let logits = [0.0, 9.0, 1.0];
    for (generated, token) in [(&[][..], 2), (&[2], 2), (&[2, 2], 1)] {
        let history = History { prompt: &[0, 0, 0], generated };
        let sampled = sample(&logits, &params, history, draw(0), &mut Scratch::default()).unwrap();
        assert_eq!(sampled.token, token, "after {generated:?}");
    }
}

proptest! {
    /// Penalties, bias, masks and truncations against the naive reference.
    #[test]
    fn probabilities_equal_the_reference(
        logits in logits(60..200), mut params in params(), prompt in tokens(20), generated in tokens(12),
    ) {
        params.temperature = params.temperature.max(0.1);
        let history = History { prompt: &prompt, generated: &generated };
        let expected = reference::adjusted(&logits, &params, history);
        prop_assume!(expected.iter().any(|logit| *logit > f64::NEG_INFINITY));
        let mut scratch = Scratch::default();
        let adjusted = adjust::adjusted(
            &logits, &params, history, &mut scratch.occurrences, &mut scratch.adjusted);
        for (got, expected) in adjusted.iter().zip(&expected) {
            prop_assert!(f64::from(*got) == *expected || (f64::from(*got) - expected).abs() < 1e-4);
        }
        let Some(expected) = reference::probabilities(&expected, &params) else { return Ok(()) };
        weigh(adjusted, highest::max(adjusted), &params, &mut scratch.weights, &mut scratch.keys);
        let total: f64 = scratch.weights.iter().map(|weight| f64::from(*weight)).sum();
        for (token, (weight, expected)) in scratch.weights.iter().zip(expected).enumerate() {
            let got = f64::from(*weight) / total;
            prop_assert!((got - expected).abs() < 2e-5, "token {token}: {got} instead of {expected}");
        }
    }

    #[test]
    fn greedy_equals_the_reference(
        logits in logits(60..200), mut params in params(), prompt in tokens(20), generated in tokens(12),
    ) {
        params.temperature = 0.0;
        let history = History { prompt: &prompt, generated: &generated };
        let adjusted = reference::adjusted(&logits, &params, history);
        let best = (0..adjusted.len()).rev().max_by(|a, b| adjusted[*a].total_cmp(&adjusted[*b])).unwrap();
        let expected = if adjusted[best] > f64::NEG_INFINITY { Ok(best as u32) } else { Err(SampleError::NoCandidate) };
        let sampled = sample(&logits, &params, history, draw(0), &mut Scratch::default());
        prop_assert_eq!(sampled.map(|s| s.token), expected);
    }

    /// The scratch carries nothing over, not even from another vocabulary.
    #[test]
    fn the_scratch_does_not_matter(
        calls in prop::collection::vec((logits(1..150), params(), tokens(20), tokens(12), any::<u32>()), 1..6),
    ) {
        let mut used = Scratch::default();
        for (logits, params, prompt, generated, position) in &calls {
            let history = History { prompt, generated };
            let fresh = sample(logits, params, history, draw(*position), &mut Scratch::default());
            prop_assert_eq!(sample(logits, params, history, draw(*position), &mut used), fresh);
        }
    }

    /// Renaming the tokens renames the distribution, when no tie has to be broken.
    #[test]
    fn the_order_of_the_vocabulary_does_not_matter(
        shuffled in Just((0..80usize).collect::<Vec<_>>()).prop_shuffle(), params in params(),
    ) {
        let distinct: Vec<f32> = (0..80).map(|i| (i * 29 % 80) as f32 / 8.0).collect();
        let renamed: Vec<f32> = shuffled.iter().map(|token| distinct[*token]).collect();
        let params = SamplingParams { temperature: params.temperature.max(0.1), ..params };
        let (mut straight, mut permuted, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        weigh(&distinct, highest::max(&distinct), &params, &mut straight, &mut keys);
        weigh(&renamed, highest::max(&renamed), &params, &mut permuted, &mut keys);
        let expected: Vec<u32> = shuffled.iter().map(|token| straight[*token]).collect();
        prop_assert_eq!(permuted, expected);
    }

    /// log-softmax of the raw logits, whatever else the request asks for.
    #[test]
    fn logprobs_are_of_the_raw_logits(logits in logits(60..200), params in params(), generated in tokens(12)) {
        let raw: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
        let expected = reference::softmax(&raw);
        let history = History { prompt: &[], generated: &generated };
        let Ok(sampled) = sample(&logits, &params, history, draw(1), &mut Scratch::default()) else {
            return Ok(());
        };
        let mut order: Vec<u32> = (0..logits.len() as u32).filter(|t| expected[*t as usize] > 0.0).collect();
        order.sort_by(|a, b| raw[*b as usize].total_cmp(&raw[*a as usize]).then(a.cmp(b)));
        order.truncate(usize::from(params.logprobs.unwrap_or(0)));
        prop_assert_eq!(sampled.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), order);
        for (token, logprob) in sampled.top.iter().copied().chain([(sampled.token, sampled.logprob)]) {
            prop_assert!((f64::from(logprob) - expected[token as usize].ln()).abs() < 1e-4);
        }
    }

    /// Any bits as logits and parameters: an answer from inside the vocabulary or a typed error.
    #[test]
    fn is_total(
        logits in prop::collection::vec(any::<f32>(), 0..100),
        floats in any::<[f32; 7]>(),
        (top_k, min_tokens, logprobs) in any::<(u32, u32, Option<u8>)>(),
        tokens in prop::collection::vec(prop_oneof![0u32..120, any::<u32>()], 0..20),
        (seed, choice, position) in any::<(u64, u32, u32)>(),
        finite: bool,
    ) {
        let logits: Vec<f32> =
            logits.into_iter().map(|l| if finite && (l.is_nan() || l == f32::INFINITY) { f32::MAX } else { l }).collect();
        let [temperature, top_p, min_p, presence, frequency, repetition, bias] = floats;
        let params = SamplingParams {
            temperature, top_k, top_p, min_p,
            presence_penalty: presence,
            frequency_penalty: frequency,
            repetition_penalty: repetition,
            logit_bias: tokens.iter().map(|token| (*token, bias)).collect(),
            min_tokens,
            stop_token_ids: tokens.clone(),
            end_token_ids: tokens.clone(),
            logprobs,
        };
        let history = History { prompt: &tokens, generated: &tokens };
        let draw = Draw { seed, choice, position };
        if let Ok(sampled) = sample(&logits, &params, history, draw, &mut Scratch::default()) {
            prop_assert!(logits[sampled.token as usize] > f32::NEG_INFINITY);
            prop_assert!(sampled.logprob <= 1e-6 && sampled.logprob.is_finite());
            prop_assert!(sampled.top.len() <= usize::from(MAX_LOGPROBS));
        }
    }
}
