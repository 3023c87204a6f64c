//! What history and request change in the logits before anything is chosen.
//!
//! In this order: stop and end tokens to -inf while fewer than `min_tokens` are generated; logit bias added;
//! for each token of the prompt or generated, a positive logit divided by, another multiplied with, the
//! repetition penalty; for each token generated, `frequency * occurrences + presence` subtracted.

use super::{History, SamplingParams};

/// How often each token of a history was generated; knows which entries to clear.
#[derive(Debug, Default)]
pub(super) struct Occurrences {
    /// By token: 0 = in neither part of the history, else 1 + times generated.
    marks: Vec<u32>,
    /// Tokens with a mark, each once, in order of first appearance.
    tokens: Vec<u32>,
}

impl Occurrences {
    fn count(&mut self, history: History<'_>, with_prompt: bool, vocab_size: usize) {
        for token in self.tokens.drain(..) {
            self.marks[token as usize] = 0;
        }
        self.marks.resize(vocab_size, 0);
        if with_prompt {
            for token in history.prompt {
                self.mark(*token, 0);
            }
        }
        for token in history.generated {
            self.mark(*token, 1);
        }
    }

    fn mark(&mut self, token: u32, times: u32) {
        let Some(mark) = self.marks.get_mut(token as usize) else { return };
        if *mark == 0 {
            *mark = 1;
            self.tokens.push(token);
        }
        *mark += times;
    }

    /// Each token of the history with the times it was generated.
    fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.tokens.iter().map(|token| (*token, self.marks[*token as usize] - 1))
    }
}

/// The logits to choose from: `logits` themselves when nothing applies, else a changed copy in `buffer`.
///
/// A logit of -inf stays; any other stays finite.
pub(super) fn adjusted<'a>(
    logits: &'a [f32],
    params: &SamplingParams,
    history: History<'_>,
    occurrences: &mut Occurrences,
    buffer: &'a mut Vec<f32>,
) -> &'a [f32] {
    let ends = || params.stop_token_ids.iter().chain(&params.end_token_ids);
    let masks_ends = history.generated.len() < params.min_tokens as usize && ends().next().is_some();
    let repeats = params.repetition_penalty != 1.0;
    let penalises = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
    if !masks_ends && !repeats && !penalises && params.logit_bias.is_empty() {
        return logits;
    }
    buffer.clear();
    buffer.extend_from_slice(logits);
    if masks_ends {
        for token in ends() {
            change(buffer, *token, |_| f32::NEG_INFINITY);
        }
    }
    for (token, bias) in &params.logit_bias {
        change(buffer, *token, |logit| finite(logit + bias));
    }
    if repeats || penalises {
        occurrences.count(history, repeats, logits.len());
        for (token, times) in occurrences.iter() {
            change(buffer, token, |logit| penalised(logit, times, params));
        }
    }
    buffer
}

/// The logit of a token of the history that was generated `times` times.
fn penalised(logit: f32, times: u32, params: &SamplingParams) -> f32 {
    let penalty = params.repetition_penalty;
    let repeated = finite(if logit > 0.0 { logit / penalty } else { logit * penalty });
    if times == 0 {
        return repeated;
    }
    let frequency = params.frequency_penalty * times as f32;
    finite(repeated - frequency - params.presence_penalty)
}

/// Changes the logit of `token` unless that is -inf or outside the vocabulary.
fn change(logits: &mut [f32], token: u32, new: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token as usize)
        && *logit > f32::NEG_INFINITY
    {
        *logit = new(*logit);
    }
}

/// The nearest finite value; the lowest for NaN, which only parameters that do not validate give.
fn finite(value: f32) -> f32 {
    if value > f32::MIN { value.min(f32::MAX) } else { f32::MIN }
}
