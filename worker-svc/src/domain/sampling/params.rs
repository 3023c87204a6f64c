//! What a request may ask of the sampler, and the limits of it.

/// Below this temperature sampling is greedy (vLLM's `_SAMPLING_EPS`).
pub const GREEDY_BELOW: f32 = 1e-5;
/// Highest temperature; the public API stops at 2.
pub const MAX_TEMPERATURE: f32 = 100.0;
/// Bound of presence and frequency penalty, either sign (OpenAI's limit).
pub const PENALTY_LIMIT: f32 = 2.0;
/// Bound of a logit bias, either sign (OpenAI's limit).
pub const BIAS_LIMIT: f32 = 100.0;
/// Highest repetition penalty.
pub const MAX_REPETITION_PENALTY: f32 = 2.0;
/// Most tokens with a bias.
pub const MAX_LOGIT_BIAS: usize = 1_024;
/// Most stop tokens that a request may name.
pub const MAX_STOP_TOKENS: usize = 64;
/// Most alternatives with log-probabilities (OpenAI's limit).
pub const MAX_LOGPROBS: u8 = 20;

/// How the tokens of a request are chosen. The default is the plain softmax.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits, 0 to 100; 0 takes the likeliest token. Default 1.
    pub temperature: f32,
    /// Only the `top_k` likeliest tokens; 0 is all of them. Default 0.
    pub top_k: u32,
    /// Only the fewest tokens that together have this probability, above 0 to 1. Default 1.
    pub top_p: f32,
    /// Only tokens with at least this share of the likeliest token's probability, 0 to 1. Default 0.
    pub min_p: f32,
    /// Subtracted from the logit of each token generated so far, -2 to 2. Default 0.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence of a token generated so far, -2 to 2. Default 0.
    pub frequency_penalty: f32,
    /// Divides a positive logit and multiplies a negative one of each token of the prompt and generated
    /// so far; above 0 to 2. Default 1.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens, -100 to 100; at most 1,024, of an id named twice both are added.
    pub logit_bias: Vec<(u32, f32)>,
    /// Until this many tokens are generated no stop or end token is chosen. Default 0.
    pub min_tokens: u32,
    /// Tokens that the request wants to end the generation; at most 64.
    pub stop_token_ids: Vec<u32>,
    /// The model's own end tokens, unless the request ignores them.
    pub end_token_ids: Vec<u32>,
    /// How many alternatives to report with log-probabilities, 0 to 20; the chosen token's own
    /// log-probability is always reported. Default none.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            end_token_ids: Vec::new(),
            logprobs: None,
        }
    }
}

/// A parameter outside its limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} is {value}: it must be {limit}")]
pub struct ParamError {
    /// Name of the parameter, as in [`SamplingParams`].
    pub parameter: &'static str,
    /// What the request asked for.
    pub value: String,
    /// What is allowed, in words.
    pub limit: String,
}

impl SamplingParams {
    /// Greedy decoding: temperature 0.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether the likeliest token is taken and nothing is drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW || self.temperature.is_nan()
    }

    /// Whether `token` ends the generation.
    pub fn is_stop(&self, token: u32) -> bool {
        self.stop_token_ids.contains(&token) || self.end_token_ids.contains(&token)
    }

    /// Checks every parameter against its limits. `vocab_size` bounds the token ids.
    ///
    /// # Errors
    /// The first parameter outside its limits.
    pub fn validate(&self, vocab_size: usize) -> Result<(), ParamError> {
        let penalty = -PENALTY_LIMIT..=PENALTY_LIMIT;
        within("temperature", self.temperature, 0.0..=MAX_TEMPERATURE)?;
        within("min_p", self.min_p, 0.0..=1.0)?;
        within("presence_penalty", self.presence_penalty, penalty.clone())?;
        within("frequency_penalty", self.frequency_penalty, penalty)?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, || "above 0 and at most 1".into())?;
        let repetition = self.repetition_penalty;
        check(
            "repetition_penalty",
            repetition,
            repetition > 0.0 && repetition <= MAX_REPETITION_PENALTY,
            || format!("above 0 and at most {MAX_REPETITION_PENALTY}"),
        )?;
        at_most("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS)?;
        for (token, bias) in &self.logit_bias {
            in_vocabulary("logit_bias", *token, vocab_size)?;
            within("logit_bias", *bias, -BIAS_LIMIT..=BIAS_LIMIT)?;
        }
        at_most("stop_token_ids", self.stop_token_ids.len(), MAX_STOP_TOKENS)?;
        for token in &self.stop_token_ids {
            in_vocabulary("stop_token_ids", *token, vocab_size)?;
        }
        let logprobs = self.logprobs.unwrap_or(0);
        check("logprobs", logprobs, logprobs <= MAX_LOGPROBS, || format!("at most {MAX_LOGPROBS}"))
    }
}

fn check(
    parameter: &'static str,
    value: impl ToString,
    holds: bool,
    limit: impl FnOnce() -> String,
) -> Result<(), ParamError> {
    if holds { Ok(()) } else { Err(ParamError { parameter, value: value.to_string(), limit: limit() }) }
}

fn within(name: &'static str, value: f32, range: std::ops::RangeInclusive<f32>) -> Result<(), ParamError> {
    check(name, value, range.contains(&value), || format!("between {} and {}", range.start(), range.end()))
}

fn at_most(name: &'static str, count: usize, limit: usize) -> Result<(), ParamError> {
    check(name, format!("a list of {count}"), count <= limit, || format!("a list of at most {limit}"))
}

fn in_vocabulary(name: &'static str, token: u32, vocab_size: usize) -> Result<(), ParamError> {
    check(name, format!("for token {token}"), (token as usize) < vocab_size, || {
        format!("for tokens below the vocabulary's size, {vocab_size}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SamplingParams)) -> String {
        let mut params = SamplingParams::default();
        params.validate(1_000).unwrap();
        change(&mut params);
        params.validate(1_000).unwrap_err().to_string()
    }

    #[test]
    fn a_refusal_names_parameter_value_and_limit() {
        assert_eq!(refused(|p| p.temperature = 101.0), "temperature is 101: it must be between 0 and 100");
        assert_eq!(refused(|p| p.temperature = f32::NAN), "temperature is NaN: it must be between 0 and 100");
        assert_eq!(refused(|p| p.top_p = 0.0), "top_p is 0: it must be above 0 and at most 1");
        assert_eq!(refused(|p| p.min_p = -0.1), "min_p is -0.1: it must be between 0 and 1");
        assert_eq!(
            refused(|p| p.presence_penalty = -3.0),
            "presence_penalty is -3: it must be between -2 and 2"
        );
        assert_eq!(
            refused(|p| p.frequency_penalty = 2.1),
            "frequency_penalty is 2.1: it must be between -2 and 2"
        );
        assert_eq!(
            refused(|p| p.repetition_penalty = 0.0),
            "repetition_penalty is 0: it must be above 0 and at most 2"
        );
        assert_eq!(refused(|p| p.logprobs = Some(21)), "logprobs is 21: it must be at most 20");
        assert_eq!(
            refused(|p| p.logit_bias = vec![(3, 101.0)]),
            "logit_bias is 101: it must be between -100 and 100"
        );
        assert_eq!(
            refused(|p| p.stop_token_ids = vec![1_000]),
            "stop_token_ids is for token 1000: it must be for tokens below the vocabulary's size, 1000"
        );
        assert_eq!(
            refused(|p| p.stop_token_ids = vec![1; 65]),
            "stop_token_ids is a list of 65: it must be a list of at most 64"
        );
    }
}
