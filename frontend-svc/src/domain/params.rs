//! What a client asks for, checked: every parameter in range, or the parameter's name and its limit.
//!
//! A shell fills a [`Draft`] with what it was given (wide types, absent is absent); [`Draft::check`] makes [`Params`] of it. Both shells
//! so have the same limits; a parameter is named as in OpenAI's API, or in vLLM's where OpenAI has no name.

use std::collections::BTreeMap;

/// Most choices of one request.
pub const MAX_CHOICES: u32 = 128;
/// Most stop strings.
pub const MAX_STOP_STRINGS: usize = 16;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most stop token ids.
pub const MAX_STOP_TOKENS: usize = 64;
/// Most entries of the logit bias.
pub const MAX_BIAS: usize = 1024;
/// Most alternatives per token.
pub const MAX_ALTERNATIVES: u32 = 20;
/// Longest cache salt in bytes.
pub const MAX_SALT_BYTES: usize = 256;

/// A parameter that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {message}")]
pub struct Invalid {
    /// The parameter's path, as the client wrote it.
    pub param: String,
    /// What is wrong, with the limit.
    pub message: String,
}

impl Invalid {
    /// `param` is wrong because of `message`.
    pub fn new(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: param.into(), message: message.into() }
    }
}

/// Parameters as given. Absent ones get defaults.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are the API's own")]
pub struct Draft {
    pub n: Option<i128>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i128>,
    pub min_p: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub logit_bias: Vec<(String, f64)>,
    pub seed: Option<i128>,
    /// Alternatives per token.
    pub logprobs: Option<i128>,
    /// Name under which the client gave them.
    pub logprobs_name: &'static str,
    pub max_tokens: Option<i128>,
    /// Name under which the client gave it.
    pub max_tokens_name: &'static str,
    pub min_tokens: Option<i128>,
    pub stop_token_ids: Vec<i128>,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub cache_salt: String,
}

/// Checked parameters. Every float is finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Choices, 1 to [`MAX_CHOICES`].
    pub n: u32,
    /// How a token is drawn.
    pub sampling: Sampling,
    /// Most tokens per choice; `None`: up to the context length.
    pub max_tokens: Option<u32>,
    /// End tokens are not drawn before.
    pub min_tokens: u32,
    /// End a choice beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens do not end a choice.
    pub ignore_eos: bool,
    /// End a choice; not empty strings.
    pub stop: Vec<String>,
    /// Refines the prefix cache.
    pub cache_salt: String,
}

/// How a token is drawn; `None` is the worker's default.
#[derive(Debug, Clone, Default, PartialEq)]
#[allow(missing_docs, reason = "the names are the API's own")]
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub logit_bias: BTreeMap<u32, f32>,
    pub seed: Option<u64>,
    pub logprobs: Option<u32>,
}

impl Draft {
    /// Checks every parameter against its range; the first wrong one is named.
    pub fn check(self) -> Result<Params, Invalid> {
        let n = integer("n", self.n, 1, MAX_CHOICES)?.unwrap_or(1);
        let max_name = if self.max_tokens_name.is_empty() { "max_tokens" } else { self.max_tokens_name };
        let logprobs_name = if self.logprobs_name.is_empty() { "logprobs" } else { self.logprobs_name };
        let sampling = Sampling {
            temperature: number("temperature", self.temperature, 0.0, 2.0)?,
            top_p: above_zero("top_p", self.top_p, 1.0)?,
            top_k: top_k(self.top_k)?,
            min_p: number("min_p", self.min_p, 0.0, 1.0)?,
            presence_penalty: number("presence_penalty", self.presence_penalty, -2.0, 2.0)?,
            frequency_penalty: number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?,
            repetition_penalty: above_zero("repetition_penalty", self.repetition_penalty, 2.0)?,
            logit_bias: bias(&self.logit_bias)?,
            seed: seed(self.seed)?,
            logprobs: integer(logprobs_name, self.logprobs, 0, MAX_ALTERNATIVES)?,
        };
        let max_tokens = integer(max_name, self.max_tokens, 1, u32::MAX)?;
        let min_tokens = integer("min_tokens", self.min_tokens, 0, u32::MAX)?.unwrap_or(0);
        if max_tokens.is_some_and(|max| min_tokens > max) {
            return Err(Invalid::new("min_tokens", format!("{min_tokens} is above {max_name}")));
        }
        Ok(Params {
            n,
            sampling,
            max_tokens,
            min_tokens,
            stop_token_ids: stop_tokens(&self.stop_token_ids)?,
            ignore_eos: self.ignore_eos,
            stop: stop_strings(self.stop)?,
            cache_salt: salt(self.cache_salt)?,
        })
    }
}

fn integer(name: &str, value: Option<i128>, min: u32, max: u32) -> Result<Option<u32>, Invalid> {
    let Some(value) = value else { return Ok(None) };
    match u32::try_from(value) {
        Ok(value) if (min..=max).contains(&value) => Ok(Some(value)),
        _ => Err(Invalid::new(name, format!("{value} is not in the range {min} to {max}"))),
    }
}

fn number(name: &str, value: Option<f64>, min: f64, max: f64) -> Result<Option<f32>, Invalid> {
    match value {
        // NaN is in no range.
        Some(value) if !(min..=max).contains(&value) => {
            Err(Invalid::new(name, format!("{value} is not in the range {min} to {max}")))
        }
        Some(value) => Ok(Some(value as f32)),
        None => Ok(None),
    }
}

fn above_zero(name: &str, value: Option<f64>, max: f64) -> Result<Option<f32>, Invalid> {
    let checked = number(name, value, 0.0, max)?;
    if checked == Some(0.0) {
        return Err(Invalid::new(name, format!("must be above 0 and at most {max}")));
    }
    Ok(checked)
}

fn top_k(value: Option<i128>) -> Result<Option<u32>, Invalid> {
    // vLLM's way to say "all", beside 0.
    if value == Some(-1) { Ok(Some(0)) } else { integer("top_k", value, 0, u32::MAX) }
}

fn seed(value: Option<i128>) -> Result<Option<u64>, Invalid> {
    let Some(value) = value else { return Ok(None) };
    let negative = i64::try_from(value).map(i64::cast_unsigned);
    let seed = u64::try_from(value).or(negative);
    seed.map(Some).map_err(|_| Invalid::new("seed", format!("{value} does not fit 64 bits")))
}

fn bias(entries: &[(String, f64)]) -> Result<BTreeMap<u32, f32>, Invalid> {
    if entries.len() > MAX_BIAS {
        return Err(Invalid::new(
            "logit_bias",
            format!("{} entries, the limit is {MAX_BIAS}", entries.len()),
        ));
    }
    let mut biases = BTreeMap::new();
    for (token, bias) in entries {
        let id =
            token.parse().map_err(|_| Invalid::new("logit_bias", format!("{token:?} is not a token id")))?;
        let name = format!("logit_bias.{token}");
        biases.extend(number(&name, Some(*bias), -100.0, 100.0)?.map(|bias| (id, bias)));
    }
    Ok(biases)
}

fn stop_tokens(ids: &[i128]) -> Result<Vec<u32>, Invalid> {
    if ids.len() > MAX_STOP_TOKENS {
        let message = format!("{} ids, the limit is {MAX_STOP_TOKENS}", ids.len());
        return Err(Invalid::new("stop_token_ids", message));
    }
    let wrong = |id| Invalid::new("stop_token_ids", format!("{id} is not a token id"));
    ids.iter().map(|id| u32::try_from(*id).map_err(|_| wrong(id))).collect()
}

fn stop_strings(stop: Vec<String>) -> Result<Vec<String>, Invalid> {
    if stop.len() > MAX_STOP_STRINGS {
        let message = format!("{} strings, the limit is {MAX_STOP_STRINGS}", stop.len());
        return Err(Invalid::new("stop", message));
    }
    for text in &stop {
        if text.is_empty() {
            return Err(Invalid::new("stop", "a stop string must not be empty"));
        }
        if text.len() > MAX_STOP_BYTES {
            let message = format!("a string of {} bytes, the limit is {MAX_STOP_BYTES}", text.len());
            return Err(Invalid::new("stop", message));
        }
    }
    Ok(stop)
}

fn salt(salt: String) -> Result<String, Invalid> {
    if salt.len() > MAX_SALT_BYTES {
        let message = format!("{} bytes, the limit is {MAX_SALT_BYTES}", salt.len());
        return Err(Invalid::new("cache_salt", message));
    }
    Ok(salt)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_given_is_valid() {
        let params = Draft::default().check().unwrap();
        assert_eq!((params.n, params.max_tokens), (1, None));
        assert_eq!(params.sampling, Sampling::default());
    }

    #[test]
    fn each_wrong_parameter_is_named() {
        let draft = Draft::default;
        let table = [
            (Draft { n: Some(0), ..draft() }, "n"),
            (Draft { n: Some(129), ..draft() }, "n"),
            (Draft { temperature: Some(f64::NAN), ..draft() }, "temperature"),
            (Draft { temperature: Some(2.1), ..draft() }, "temperature"),
            (Draft { top_p: Some(0.0), ..draft() }, "top_p"),
            (Draft { top_k: Some(-2), ..draft() }, "top_k"),
            (Draft { min_p: Some(f64::INFINITY), ..draft() }, "min_p"),
            (Draft { repetition_penalty: Some(0.0), ..draft() }, "repetition_penalty"),
            (Draft { seed: Some(i128::MAX), ..draft() }, "seed"),
            (
                Draft { max_tokens: Some(0), max_tokens_name: "max_completion_tokens", ..draft() },
                "max_completion_tokens",
            ),
            (Draft { max_tokens: Some(i128::MAX), ..draft() }, "max_tokens"),
            (Draft { max_tokens: Some(2), min_tokens: Some(3), ..draft() }, "min_tokens"),
            (Draft { logprobs: Some(21), ..draft() }, "logprobs"),
            (Draft { logit_bias: vec![("x".into(), 1.0)], ..draft() }, "logit_bias"),
            (Draft { logit_bias: vec![("7".into(), 101.0)], ..draft() }, "logit_bias.7"),
            (Draft { stop: vec![String::new()], ..draft() }, "stop"),
            (Draft { stop: vec!["x".into(); 17], ..draft() }, "stop"),
            (Draft { stop_token_ids: vec![-1], ..draft() }, "stop_token_ids"),
            (Draft { cache_salt: "x".repeat(257), ..draft() }, "cache_salt"),
        ];
        for (draft, name) in table {
            assert_eq!(draft.clone().check().unwrap_err().param, name, "{draft:?}");
        }
    }

    proptest! {
        #[test]
        fn floats_out_are_finite(temperature: f64, top_p: f64, penalty: f64) {
            let draft = Draft {
                temperature: Some(temperature), top_p: Some(top_p), presence_penalty: Some(penalty), ..Draft::default()
            };
            if let Ok(params) = draft.check() {
                for value in [params.sampling.temperature, params.sampling.top_p, params.sampling.presence_penalty] {
                    prop_assert!(value.is_some_and(f32::is_finite));
                }
            }
        }

        #[test]
        fn any_64_bit_seed_is_taken(seed: i64) {
            let draft = Draft { seed: Some(seed.into()), ..Draft::default() };
            prop_assert_eq!(draft.check().unwrap().sampling.seed, Some(seed.cast_unsigned()));
        }
    }
}
