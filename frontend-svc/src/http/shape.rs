//! The JSON of answers.

use serde::Serialize;

use super::logprobs::{ChatLogprobs, TextLogprobs};
use crate::session::answer::Summary;

/// An answer, or an event of one. `C` is the shape of its choices.
#[derive(Debug, Serialize)]
pub struct Envelope<'a, C> {
    /// Unique; made from the request id.
    pub id: &'a str,
    /// "chat.completion", "chat.completion.chunk" or "text_completion".
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: i64,
    /// The name that was asked for.
    pub model: &'a str,
    /// Names the weights: equal ones and an equal seed give an equal answer.
    pub system_fingerprint: &'a str,
    /// One for each choice concerned.
    pub choices: Vec<C>,
    /// `Some(None)` is `null`: usage was asked for and is yet to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

/// Tokens.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

impl From<&Summary> for Usage {
    fn from(summary: &Summary) -> Self {
        Self {
            prompt_tokens: summary.prompt_tokens,
            completion_tokens: summary.completion_tokens,
            total_tokens: summary.prompt_tokens.saturating_add(summary.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: summary.phases.reused() },
        }
    }
}

/// A choice of a chat completion.
#[derive(Debug, Serialize)]
pub struct ChatChoice {
    /// Which.
    pub index: u32,
    /// The answer.
    pub message: ChatMessage,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: &'static str,
}

/// The message of a choice.
#[derive(Debug, Serialize)]
pub struct ChatMessage {
    /// "assistant".
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// Always null: no model here refuses.
    pub refusal: Option<()>,
}

/// A choice of a chat event.
#[derive(Debug, Serialize)]
pub struct ChatChunk<'a> {
    /// Which.
    pub index: u32,
    /// What is new.
    pub delta: ChatDelta<'a>,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// On the last event of the choice.
    pub finish_reason: Option<&'static str>,
}

/// What is new in a chat choice.
#[derive(Debug, Default, Serialize)]
pub struct ChatDelta<'a> {
    /// On the first event of the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}

/// A choice of a completion, whole or in an event.
#[derive(Debug, Serialize)]
pub struct TextChoice<'a> {
    /// Which: prompt number times n plus choice.
    pub index: u32,
    /// New text.
    pub text: &'a str,
    /// When asked for.
    pub logprobs: Option<TextLogprobs>,
    /// At its end.
    pub finish_reason: Option<&'static str>,
}
