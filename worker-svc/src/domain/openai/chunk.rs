//! What one event of an engine's stream says.

use std::collections::HashMap;

use serde::Deserialize;

use super::dialect::Dialect;
use crate::domain::sampled::Sampled;

/// One event, read.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// More of the answer.
    Chunk(Chunk),
    /// `[DONE]`: nothing follows.
    Done,
    /// The engine failed in the middle.
    Error(String),
}

/// A part of the answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunk {
    /// Its text.
    pub text: String,
    /// Its tokens, where the engine tells them; their log-probabilities are 0 where it does not.
    pub tokens: Option<Vec<Sampled>>,
    /// Set when it is the last part.
    pub finish: Option<Finish>,
    /// What the engine has counted.
    pub usage: Option<EngineUsage>,
}

/// Why the engine ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// An end or stop token.
    Stop,
    /// The most tokens, or the context's end.
    Length,
    /// Something that is no end of an answer: "abort", "error".
    Other(String),
}

/// Tokens by the engine's count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineUsage {
    /// Of the prompt.
    pub prompt: u32,
    /// Generated.
    pub generated: u32,
    /// Of the prompt, found in its cache; `None` when it does not say.
    pub cached: Option<u32>,
}

/// An event that does not say what it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed event: {0}")]
pub struct Malformed(String);

fn malformed(error: impl ToString) -> Malformed {
    Malformed(error.to_string())
}

/// Reads the data of one event.
///
/// # Errors
/// [`Malformed`]: what follows cannot be trusted.
pub fn read(data: &[u8], dialect: Dialect) -> Result<Said, Malformed> {
    if data == b"[DONE]" {
        return Ok(Said::Done);
    }
    let failed: Failed = serde_json::from_slice(data).map_err(malformed)?;
    if let Some(error) = failed.error {
        return Ok(Said::Error(message(&error)));
    }
    match dialect {
        Dialect::LlamaCpp => llama_cpp(data),
        Dialect::OpenAi | Dialect::Vllm | Dialect::Sglang => completion(data),
    }
}

/// The text of an error in whatever shape: `{"error": {"message"}}`, `{"message"}`, `{"detail"}`, or a string.
pub fn message(error: &serde_json::Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = ["message", "detail"].iter().find_map(|key| inner.get(key)?.as_str());
    text.or(inner.as_str()).map_or_else(|| inner.to_string(), str::to_owned)
}

#[derive(Deserialize)]
struct Failed {
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize, Default)]
struct Logprobs {
    #[serde(default)]
    token_logprobs: Vec<Option<f32>>,
    #[serde(default)]
    top_logprobs: Option<Vec<Option<HashMap<String, f32>>>>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

fn completion(data: &[u8]) -> Result<Said, Malformed> {
    let completion: Completion = serde_json::from_slice(data).map_err(malformed)?;
    if completion.choices.len() > 1 {
        return Err(malformed("more choices than were asked for"));
    }
    let usage = completion.usage.map(|usage| EngineUsage {
        prompt: usage.prompt_tokens,
        generated: usage.completion_tokens.unwrap_or_default(),
        cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
    });
    let Some(choice) = completion.choices.into_iter().next() else {
        return Ok(Said::Chunk(Chunk { usage, ..Chunk::default() }));
    };
    let logprobs = choice.logprobs.unwrap_or_default();
    let tokens = choice.token_ids.map(|ids| {
        let sampled = ids.into_iter().enumerate().map(|(at, token)| Sampled {
            token,
            logprob: logprobs.token_logprobs.get(at).copied().flatten().unwrap_or_default(),
            top: logprobs
                .top_logprobs
                .as_ref()
                .and_then(|top| top.get(at)?.as_ref())
                .map(by_id)
                .unwrap_or_default(),
        });
        sampled.collect()
    });
    let finish = choice.finish_reason.map(finish_of);
    Ok(Said::Chunk(Chunk { text: choice.text, tokens, finish, usage }))
}

fn finish_of(reason: String) -> Finish {
    match reason.as_str() {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        _ => Finish::Other(reason),
    }
}

/// Alternatives that are named `token_id:N`, best first; others name no token.
fn by_id(top: &HashMap<String, f32>) -> Vec<(u32, f32)> {
    let id = |name: &str| name.strip_prefix("token_id:")?.parse().ok();
    let mut top: Vec<(u32, f32)> =
        top.iter().filter_map(|(name, logprob)| Some((id(name)?, *logprob))).collect();
    top.sort_by(|(a, p), (b, q)| q.total_cmp(p).then(a.cmp(b)));
    top
}

#[derive(Deserialize)]
struct LlamaChunk {
    #[serde(default)]
    content: String,
    #[serde(default)]
    tokens: Vec<u32>,
    stop: bool,
    #[serde(default)]
    stop_type: String,
    #[serde(default)]
    tokens_predicted: u32,
    #[serde(default)]
    tokens_evaluated: u32,
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(default)]
    completion_probabilities: Vec<Probability>,
}

#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    cache_n: Option<u32>,
}

#[derive(Deserialize)]
struct Probability {
    #[serde(default)]
    logprob: f32,
    #[serde(default)]
    top_logprobs: Vec<Alternative>,
}

#[derive(Deserialize)]
struct Alternative {
    id: u32,
    logprob: f32,
}

fn llama_cpp(data: &[u8]) -> Result<Said, Malformed> {
    let chunk: LlamaChunk = serde_json::from_slice(data).map_err(malformed)?;
    let mut probabilities = chunk.completion_probabilities.into_iter();
    let tokens = chunk.tokens.into_iter().map(|token| {
        let probability = probabilities.next();
        Sampled {
            token,
            logprob: probability.as_ref().map(|it| it.logprob).unwrap_or_default(),
            top: probability
                .into_iter()
                .flat_map(|it| it.top_logprobs)
                .map(|it| (it.id, it.logprob))
                .collect(),
        }
    });
    let tokens = Some(tokens.collect());
    let finish = chunk.stop.then(|| match chunk.stop_type.as_str() {
        "eos" | "word" => Finish::Stop,
        "limit" => Finish::Length,
        other => Finish::Other(other.to_owned()),
    });
    let usage = chunk.stop.then(|| EngineUsage {
        prompt: chunk.tokens_evaluated,
        generated: chunk.tokens_predicted,
        cached: chunk.timings.and_then(|timings| timings.cache_n),
    });
    Ok(Said::Chunk(Chunk { text: chunk.content, tokens, finish, usage }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn chunk(data: &str, dialect: Dialect) -> Chunk {
        match read(data.as_bytes(), dialect).unwrap() {
            Said::Chunk(chunk) => chunk,
            other => panic!("{other:?}"),
        }
    }

    fn sampled(token: u32, logprob: f32, top: &[(u32, f32)]) -> Sampled {
        Sampled { token, logprob, top: top.to_vec() }
    }

    #[test]
    fn vllm_tells_tokens_log_probabilities_and_usage() {
        let said = chunk(
            r#"{"id":"c","choices":[{"index":0,"text":" a b","logprobs":{"tokens":["token_id:5","token_id:6"],
            "token_logprobs":[-0.5,-1.0],"text_offset":[0,2],"top_logprobs":[{"token_id:7":-2.0,"token_id:5":-0.5},null]},
            "finish_reason":"length","stop_reason":null,"token_ids":[5,6],"prompt_token_ids":null}],"usage":null}"#,
            Dialect::Vllm,
        );
        let tokens = vec![sampled(5, -0.5, &[(5, -0.5), (7, -2.0)]), sampled(6, -1.0, &[])];
        let expected =
            Chunk { text: " a b".into(), tokens: Some(tokens), finish: Some(Finish::Length), usage: None };
        assert_eq!(said, expected);
        let usage = chunk(
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":8}}}"#,
            Dialect::Vllm,
        );
        assert_eq!(usage.usage, Some(EngineUsage { prompt: 9, generated: 2, cached: Some(8) }));
        assert_eq!((usage.tokens, usage.finish), (None, None));
    }

    #[test]
    fn a_plain_server_tells_text_only() {
        let said = chunk(r#"{"choices":[{"text":"hi","index":0,"finish_reason":null}]}"#, Dialect::OpenAi);
        assert_eq!(said, Chunk { text: "hi".into(), ..Chunk::default() });
        let other = chunk(r#"{"choices":[{"text":"","finish_reason":"content_filter"}]}"#, Dialect::OpenAi);
        assert_eq!(other.finish, Some(Finish::Other("content_filter".into())));
    }

    #[test]
    fn llama_cpp_tells_tokens_and_how_much_was_cached() {
        let said = chunk(
            r#"{"index":0,"content":" the","tokens":[260],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":5,
            "completion_probabilities":[{"id":260,"token":" the","bytes":[32],"logprob":-0.25,
            "top_logprobs":[{"id":260,"token":" the","bytes":[32],"logprob":-0.25}]}]}"#,
            Dialect::LlamaCpp,
        );
        assert_eq!(said.tokens, Some(vec![sampled(260, -0.25, &[(260, -0.25)])]));
        assert_eq!((said.finish, said.usage), (None, None));
        let last = chunk(
            r#"{"content":"","tokens":[],"stop":true,"stop_type":"eos","tokens_predicted":8,"tokens_evaluated":5,"timings":{"cache_n":4,"prompt_n":1}}"#,
            Dialect::LlamaCpp,
        );
        assert_eq!(last.finish, Some(Finish::Stop));
        assert_eq!(last.usage, Some(EngineUsage { prompt: 5, generated: 8, cached: Some(4) }));
    }

    #[test]
    fn errors_and_nonsense_are_told_apart() {
        let error = br#"{"error":{"code":500,"message":"slot is gone","type":"server_error"}}"#;
        assert_eq!(read(error, Dialect::LlamaCpp), Ok(Said::Error("slot is gone".into())));
        assert_eq!(read(br#"{"error":"x"}"#, Dialect::Vllm), Ok(Said::Error("x".into())));
        assert_eq!(read(b"[DONE]", Dialect::Vllm), Ok(Said::Done));
        for data in [&b"{"[..], b"", b"[]", b"{}", br#"{"choices":[{"text":"a"},{"text":"b"}]}"#, b"\xff"] {
            for dialect in [Dialect::Vllm, Dialect::LlamaCpp] {
                assert!(read(data, dialect).is_err(), "{data:?} for {dialect}");
            }
        }
    }
}
