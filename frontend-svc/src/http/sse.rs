//! Deltas as server-sent events. The role and the first text of a choice are one frame, so that the head of the response and the first
//! event leave in one write.

use std::sync::Arc;

use serde::Serialize;

use super::error::ApiError;
use super::logprobs;
use super::shape::{ChatChunk, ChatDelta, Envelope, TextChoice, Usage};
use crate::domain::text::Delta;
use crate::models::tokenizer::ModelTokenizer;
use crate::session::answer::Summary;

/// Which API the events are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Chat completions.
    Chat,
    /// Completions.
    Text,
}

/// What all events of an answer have in common.
#[derive(Debug, Clone)]
pub struct Common {
    /// Which API.
    pub api: Api,
    /// Of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: i64,
    /// As asked for.
    pub model: String,
    /// Names the weights.
    pub fingerprint: String,
    /// Names tokens.
    pub tokenizer: Arc<ModelTokenizer>,
    /// Whether they were asked for.
    pub logprobs: bool,
    /// Texts that begin the choices of each prompt; empty without echo.
    pub echo: Vec<String>,
}

/// Writes the events of one answer.
#[derive(Debug)]
pub struct Events {
    common: Common,
    usage: bool,
    /// By choice: characters of its tokens so far; `None` before its first event.
    begun: Vec<Option<usize>>,
}

impl Events {
    /// Events of `choices` choices; `usage`: with one for the usage.
    pub fn new(common: Common, choices: usize, usage: bool) -> Self {
        Self { common, usage, begun: vec![None; choices] }
    }

    /// The events of one delta.
    pub fn delta(&mut self, prompt: usize, delta: &Delta) -> Vec<u8> {
        let mut frame = Vec::with_capacity(512);
        match self.common.api {
            Api::Chat => self.chat(delta, &mut frame),
            Api::Text => self.text(prompt, delta, &mut frame),
        }
        frame
    }

    /// The events that end a complete answer.
    pub fn end(&self, summary: &Summary) -> Vec<u8> {
        let mut frame = Vec::new();
        if self.usage {
            let mut envelope = self.envelope::<()>(Vec::new());
            envelope.usage = Some(Some(Usage::from(summary)));
            event(&mut frame, &envelope);
        }
        frame.extend_from_slice(b"data: [DONE]\n\n");
        frame
    }

    fn chat(&mut self, delta: &Delta, frame: &mut Vec<u8>) {
        let index = delta.choice;
        let chunk = |delta, logprobs, finish_reason| ChatChunk { index, delta, logprobs, finish_reason };
        if self.first(index) {
            let opening = ChatDelta { role: Some("assistant"), content: Some("") };
            event(frame, &self.envelope(vec![chunk(opening, None, None)]));
        }
        let logprobs = (self.common.logprobs && !delta.tokens.is_empty())
            .then(|| logprobs::chat(&delta.tokens, &self.common.tokenizer));
        if !delta.text.is_empty() || logprobs.is_some() {
            let content = ChatDelta { role: None, content: Some(&delta.text) };
            event(frame, &self.envelope(vec![chunk(content, logprobs, None)]));
        }
        if let Some(finish) = delta.finish {
            let last = chunk(ChatDelta::default(), None, Some(finish.as_str()));
            event(frame, &self.envelope(vec![last]));
        }
    }

    fn text(&mut self, prompt: usize, delta: &Delta, frame: &mut Vec<u8>) {
        let index = delta.choice;
        let echoed = self.first(index).then(|| self.common.echo.get(prompt)).flatten();
        let text = echoed.map_or_else(|| delta.text.clone(), |echo| format!("{echo}{}", delta.text));
        let mut offset = self.begun.get(index as usize).copied().flatten().unwrap_or_default();
        let logprobs = (self.common.logprobs && !delta.tokens.is_empty())
            .then(|| logprobs::text(&delta.tokens, &self.common.tokenizer, &mut offset));
        if let Some(begun) = self.begun.get_mut(index as usize) {
            *begun = Some(offset);
        }
        if text.is_empty() && logprobs.is_none() && delta.finish.is_none() {
            return;
        }
        let choice =
            TextChoice { index, text: &text, logprobs, finish_reason: delta.finish.map(|it| it.as_str()) };
        event(frame, &self.envelope(vec![choice]));
    }

    /// Whether this is the first event of the choice.
    fn first(&mut self, index: u32) -> bool {
        self.begun.get_mut(index as usize).is_some_and(|begun| begun.replace(begun.unwrap_or(0)).is_none())
    }

    fn envelope<C>(&self, choices: Vec<C>) -> Envelope<'_, C> {
        Envelope {
            id: &self.common.id,
            object: match self.common.api {
                Api::Chat => "chat.completion.chunk",
                Api::Text => "text_completion",
            },
            created: self.common.created,
            model: &self.common.model,
            system_fingerprint: &self.common.fingerprint,
            choices,
            usage: self.usage.then_some(None),
        }
    }
}

/// The event that ends a broken answer.
pub fn error(error: &ApiError) -> Vec<u8> {
    let mut frame = Vec::new();
    event(&mut frame, &error.json());
    frame
}

fn event(frame: &mut Vec<u8>, data: &impl Serialize) {
    frame.extend_from_slice(b"data: ");
    let start = frame.len();
    if let Err(error) = serde_json::to_writer(&mut *frame, data) {
        // Strings and finite numbers always serialise; a bug must not end up as half an event.
        tracing::error!(%error, "event does not serialise");
        frame.truncate(start);
        frame.extend_from_slice(b"{}");
    }
    frame.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::domain::text::Finish;
    use proptest::prelude::*;
    use serde_json::Value;

    fn events(api: Api, choices: usize) -> Events {
        let vocabulary = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
        let common = Common {
            api,
            id: "id".into(),
            created: 1,
            model: "m\n\"".into(),
            fingerprint: "fp".into(),
            tokenizer: Arc::new(ModelTokenizer::parse(vocabulary.as_bytes()).unwrap()),
            logprobs: false,
            echo: Vec::new(),
        };
        Events::new(common, choices, true)
    }

    /// The events of a frame, as a client reads them.
    fn read(frame: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(frame).unwrap();
        text.split_terminator("\n\n")
            .map(|it| serde_json::from_str(it.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn any_text_arrives(pieces in prop::collection::vec((0_u32..3, ".{0,8}"), 0..12), chat: bool) {
            let mut events = events(if chat { Api::Chat } else { Api::Text }, 3);
            let mut sent = vec![String::new(); 3];
            let mut seen = sent.clone();
            for (choice, text) in pieces {
                sent[choice as usize].push_str(&text);
                let delta = Delta { choice, text, tokens: Vec::new(), finish: None };
                for event in read(&events.delta(0, &delta)) {
                    let choice = &event["choices"][0];
                    let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap();
                    seen[choice["index"].as_u64().unwrap() as usize].push_str(text);
                    prop_assert_eq!(&event["usage"], &Value::Null);
                }
            }
            prop_assert_eq!(seen, sent);
        }
    }

    #[test]
    fn the_end_has_its_reason_and_the_usage() {
        let mut events = events(Api::Chat, 1);
        let delta = Delta { choice: 0, text: "x".into(), tokens: Vec::new(), finish: Some(Finish::Length) };
        let read_back = read(&events.delta(0, &delta));
        let reasons: Vec<_> = read_back.iter().map(|it| it["choices"][0]["finish_reason"].clone()).collect();
        assert_eq!(reasons, [Value::Null, Value::Null, "length".into()]);
        let end = events.end(&Summary { prompt_tokens: 2, completion_tokens: 3, ..Summary::default() });
        let (usage, done) = end.split_at(end.len() - b"data: [DONE]\n\n".len());
        assert_eq!(done, b"data: [DONE]\n\n");
        assert_eq!(read(usage)[0]["usage"]["total_tokens"], 5);
    }
}
