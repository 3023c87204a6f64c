//! A request in an engine's words. Every sampling parameter is said, or the request is refused naming it: never is one left out silently,
//! and what the client left at its default is said as well, for engines have defaults of their own.

use serde_json::{Map, Value, json};

use super::dialect::{Abilities, Dialect, PromptForm};
use crate::domain::sampling::SamplingParams;

/// One choice to be generated.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The model, as the engine calls it.
    pub model: &'a str,
    /// How tokens are chosen.
    pub params: &'a SamplingParams,
    /// The model's end tokens do not end it.
    pub ignore_eos: bool,
    /// Most tokens to generate now.
    pub max_tokens: u32,
    /// Fewest tokens to generate now.
    pub min_tokens: u32,
    /// Seed of this choice.
    pub seed: u64,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Keeps caches of different owners apart; empty: no need to.
    pub cache_salt: &'a str,
}

/// A prompt as the engine takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// Token ids.
    Ids(&'a [u32]),
    /// Text.
    Text(&'a str),
}

/// The engine has no such parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{parameter}: {why}, behind a {dialect} engine")]
pub struct Unsupported {
    /// The parameter's name in the API.
    pub parameter: &'static str,
    /// What it cannot be.
    pub why: &'static str,
    /// The engine's kind.
    pub dialect: Dialect,
}

/// Checks that every parameter can be said to this engine.
///
/// # Errors
/// The first one that cannot.
pub fn check(ask: &Ask<'_>, abilities: Abilities) -> Result<(), Unsupported> {
    let Abilities { dialect, tells_ids, .. } = abilities;
    let params = ask.params;
    let default = SamplingParams::default();
    let ours = matches!(dialect, Dialect::Vllm | Dialect::Sglang | Dialect::LlamaCpp);
    let cannot = "cannot be set";
    let most_logprobs = abilities.max_logprobs();
    let rules = [
        ("top_k", params.top_k != default.top_k && !ours, cannot),
        ("min_p", params.min_p != default.min_p && !ours, cannot),
        ("repetition_penalty", params.repetition_penalty != default.repetition_penalty && !ours, cannot),
        ("ignore_eos", ask.ignore_eos && !ours, cannot),
        ("min_tokens", ask.min_tokens > 0 && !matches!(dialect, Dialect::Vllm | Dialect::Sglang), cannot),
        (
            "stop_token_ids",
            !params.stop_token_ids.is_empty() && !tells_ids,
            "needs the ids of generated tokens, which are not told",
        ),
        (
            "logprobs",
            params.logprobs.is_some() && most_logprobs.is_none(),
            "needs the ids of tokens, which are not told",
        ),
        (
            "logprobs",
            params.logprobs > most_logprobs && most_logprobs.is_some(),
            "cannot be more than 0: alternatives come without their ids",
        ),
        (
            "cache_salt",
            !ask.cache_salt.is_empty() && !matches!(dialect, Dialect::Vllm | Dialect::Sglang),
            "cannot be honoured",
        ),
    ];
    match rules.into_iter().find(|(_, refused, _)| *refused) {
        None => Ok(()),
        Some((parameter, _, why)) => Err(Unsupported { parameter, why, dialect }),
    }
}

/// The body of the engine's generate call; streamed, with usage at the end. [`check`] has passed.
pub fn body(ask: &Ask<'_>, prompt: Prompt<'_>, abilities: Abilities) -> Value {
    let mut body = match abilities.dialect {
        Dialect::OpenAi => plain(ask, abilities),
        Dialect::Vllm | Dialect::Sglang => extended(ask, abilities),
        Dialect::LlamaCpp => llama_cpp(ask),
    };
    let prompt = match prompt {
        Prompt::Ids(ids) => json!(ids),
        Prompt::Text(text) => json!(text),
    };
    body.insert("prompt".into(), prompt);
    body.insert("stream".into(), json!(true));
    Value::Object(body)
}

/// What OpenAI documents. Penalties and biases at their defaults are left out: not every server has them.
fn plain(ask: &Ask<'_>, abilities: Abilities) -> Map<String, Value> {
    let params = ask.params;
    let mut body = object(json!({
        "model": ask.model,
        "max_tokens": ask.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": ask.seed >> 1,
        "stream_options": {"include_usage": true},
    }));
    for (name, value) in
        [("presence_penalty", params.presence_penalty), ("frequency_penalty", params.frequency_penalty)]
    {
        if value != 0.0 {
            body.insert(name.into(), json!(value));
        }
    }
    if !params.logit_bias.is_empty() {
        body.insert("logit_bias".into(), biases_by_name(params));
    }
    if abilities.tells_ids {
        body.insert("return_token_ids".into(), json!(true));
    }
    body
}

/// vLLM and SGLang: OpenAI's, and what both add. A top_k of -1 is all of them, also for versions that refuse 0.
fn extended(ask: &Ask<'_>, abilities: Abilities) -> Map<String, Value> {
    let params = ask.params;
    let mut body = plain(ask, abilities);
    let more = json!({
        "top_k": if params.top_k == 0 { -1 } else { i64::from(params.top_k) },
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "ignore_eos": ask.ignore_eos,
        "min_tokens": ask.min_tokens,
        "stop_token_ids": params.stop_token_ids,
        "skip_special_tokens": false,
    });
    body.extend(object(more));
    if let PromptForm::Text { .. } = abilities.prompt
        && abilities.dialect == Dialect::Vllm
    {
        body.insert("add_special_tokens".into(), json!(false));
    }
    if let Some(count) = params.logprobs {
        body.insert("logprobs".into(), json!(count));
        if abilities.dialect == Dialect::Vllm {
            // Names tokens as `token_id:N`: their text is shared by several.
            body.insert("return_tokens_as_token_ids".into(), json!(true));
        }
    }
    if !ask.cache_salt.is_empty() {
        body.insert("cache_salt".into(), json!(ask.cache_salt));
    }
    body
}

/// llama.cpp's own call. Its defaults are far from a plain softmax; its penalties count the prompt as well.
fn llama_cpp(ask: &Ask<'_>) -> Map<String, Value> {
    let params = ask.params;
    let penalized =
        params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 || params.repetition_penalty != 1.0;
    // Its seeds have 32 bits, all of them set means a random one.
    let seed = ((ask.seed >> 32) ^ ask.seed) as u32 & (u32::MAX >> 1);
    let mut body = object(json!({
        "n_predict": ask.max_tokens,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repeat_penalty": params.repetition_penalty,
        "repeat_last_n": if penalized { ask.context } else { 0 },
        "seed": seed,
        "ignore_eos": ask.ignore_eos,
        "return_tokens": true,
        "cache_prompt": true,
    }));
    if !params.logit_bias.is_empty() {
        let pairs: Vec<Value> = params.logit_bias.iter().map(|(id, bias)| json!([id, bias])).collect();
        body.insert("logit_bias".into(), json!(pairs));
    }
    if let Some(count) = params.logprobs {
        // At least one, or it tells not even the chosen token's.
        body.insert("n_probs".into(), json!(count.max(1)));
    }
    body
}

/// `{"id": bias}`; of an id that is named twice both count.
fn biases_by_name(params: &SamplingParams) -> Value {
    let mut sums: std::collections::BTreeMap<u32, f32> = std::collections::BTreeMap::new();
    for (id, bias) in &params.logit_bias {
        *sums.entry(*id).or_default() += bias;
    }
    Value::Object(sums.into_iter().map(|(id, bias)| (id.to_string(), json!(bias))).collect())
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The seed of one choice that goes on at a position: the same for the same, and unlike those of its neighbours.
pub fn choice_seed(seed: u64, choice: u32, position: usize) -> u64 {
    let mut z = seed
        .wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add((position as u64).wrapping_mul(0xd1b5_4a32_d192_ed03));
    // SplitMix64's finalizer.
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
