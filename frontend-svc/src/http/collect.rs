//! Deltas gathered into one answer.

use armature_contracts::error::Fault;
use serde_json::Value;

use super::answer::{Answers, Step};
use super::logprobs;
use super::shape::{ChatChoice, ChatMessage, Envelope, TextChoice, Usage};
use super::sse::{Api, Common};
use crate::domain::text::{Finish, Token};
use crate::session::answer::Summary;

#[derive(Debug, Clone, Default)]
struct Choice {
    text: String,
    tokens: Vec<Token>,
    finish: Option<Finish>,
}

/// Waits for all of the answer and makes its JSON.
pub async fn collect(common: &Common, mut answers: Answers, choices: usize) -> Result<Value, Fault> {
    let mut gathered = vec![Choice::default(); choices];
    let each = choices / common.echo.len().max(1);
    for (index, choice) in gathered.iter_mut().enumerate() {
        choice.text.push_str(common.echo.get(index / each.max(1)).map_or("", String::as_str));
    }
    let mut total = Summary::default();
    while let Some(step) = answers.next().await {
        match step? {
            Step::Finished(summary) => total = summary,
            Step::Delta { delta, .. } => {
                let Some(choice) = gathered.get_mut(delta.choice as usize) else { continue };
                choice.text.push_str(&delta.text);
                choice.finish = delta.finish.or(choice.finish);
                if common.logprobs {
                    choice.tokens.extend(delta.tokens);
                }
            }
        }
    }
    let usage = Some(Some(Usage::from(&total)));
    Ok(match common.api {
        Api::Chat => {
            let choices = (0..).zip(gathered).map(|(index, choice)| chat(common, index, choice)).collect();
            json(envelope(common, "chat.completion", choices, usage))
        }
        Api::Text => {
            let choices = (0..).zip(&gathered).map(|(index, choice)| text(common, index, choice)).collect();
            json(envelope(common, "text_completion", choices, usage))
        }
    })
}

fn chat(common: &Common, index: u32, choice: Choice) -> ChatChoice {
    ChatChoice {
        index,
        logprobs: common.logprobs.then(|| logprobs::chat(&choice.tokens, &common.tokenizer)),
        message: ChatMessage { role: "assistant", content: choice.text, refusal: None },
        finish_reason: choice.finish.unwrap_or(Finish::Stop).as_str(),
    }
}

fn text<'a>(common: &Common, index: u32, choice: &'a Choice) -> TextChoice<'a> {
    TextChoice {
        index,
        text: &choice.text,
        logprobs: common.logprobs.then(|| logprobs::text(&choice.tokens, &common.tokenizer, &mut 0)),
        finish_reason: choice.finish.map(Finish::as_str),
    }
}

fn envelope<'a, C>(
    common: &'a Common,
    object: &'static str,
    choices: Vec<C>,
    usage: Option<Option<Usage>>,
) -> Envelope<'a, C> {
    Envelope {
        id: &common.id,
        object,
        created: common.created,
        model: &common.model,
        system_fingerprint: &common.fingerprint,
        choices,
        usage,
    }
}

fn json(answer: impl serde::Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}
