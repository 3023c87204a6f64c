//! The sampler written naively, in f64 with full sorts, for tests to compare with.

use super::{History, SamplingParams};

/// Each token's logit after the penalties; -inf when masked.
pub(super) fn adjusted(logits: &[f32], params: &SamplingParams, history: History<'_>) -> Vec<f64> {
    let count = |tokens: &[u32], token: u32| tokens.iter().filter(|t| **t == token).count();
    let adjust = |(token, logit): (usize, &f32)| {
        let token = token as u32;
        if history.generated.len() < params.min_tokens as usize && params.is_stop(token) {
            return f64::NEG_INFINITY;
        }
        let biases = params.logit_bias.iter().filter(|(t, _)| *t == token);
        let mut logit = f64::from(*logit) + biases.map(|(_, bias)| f64::from(*bias)).sum::<f64>();
        let times = count(history.generated, token);
        if times > 0 || count(history.prompt, token) > 0 {
            let penalty = f64::from(params.repetition_penalty);
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        if times > 0 {
            logit -= f64::from(params.frequency_penalty) * times as f64 + f64::from(params.presence_penalty);
        }
        logit
    };
    logits.iter().enumerate().map(adjust).collect()
}

/// Softmax.
pub(super) fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Each token's probability to be drawn. `None` where a threshold is too close to call between f32 and
/// f64.
pub(super) fn probabilities(adjusted: &[f64], params: &SamplingParams) -> Option<Vec<f64>> {
    const TOO_CLOSE: f64 = 1e-5;
    let mut scaled: Vec<f64> = adjusted.iter().map(|l| l / f64::from(params.temperature)).collect();

    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min_p = f64::from(params.min_p);
    for logit in &mut scaled {
        let share = (*logit - max).exp();
        if min_p > 0.0 && share < 1.0 && (share - min_p).abs() < TOO_CLOSE {
            return None;
        }
        if share < min_p {
            *logit = f64::NEG_INFINITY;
        }
    }

    let mut order: Vec<usize> = (0..scaled.len()).collect();
    order.sort_by(|a, b| adjusted[*b].total_cmp(&adjusted[*a]).then(a.cmp(b)));
    if params.top_k > 0 {
        for token in order.iter().skip(params.top_k as usize) {
            scaled[*token] = f64::NEG_INFINITY;
        }
    }

    if params.top_p < 1.0 {
        let before = softmax(&scaled);
        let mut sum = 0.0;
        for token in order {
            if sum >= f64::from(params.top_p) {
                scaled[token] = f64::NEG_INFINITY;
            }
            sum += before[token];
            if (sum - f64::from(params.top_p)).abs() < TOO_CLOSE {
                return None;
            }
        }
    }
    Some(softmax(&scaled))
}
