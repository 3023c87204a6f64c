//! Between the messages of InferenceService and our words.

use armature_contracts::error::Fault;
use armature_contracts::inference::v1 as wire;

use super::status::invalid;
use crate::domain::params::{Draft, Invalid};
use crate::domain::prompt::{Ask, Chat, Input, Message, Session};
use crate::domain::text::{Delta, Finish, Token};
use crate::session::answer::Summary;
use crate::session::generate::Generation;

/// Most bytes of a session id.
const MAX_SESSION_BYTES: usize = 256;

/// Checks a request.
pub fn ask(request: wire::GenerateRequest) -> Result<Ask, Fault> {
    let required = |name| invalid(Invalid::new(name, "is required"));
    if request.model.is_empty() {
        return Err(required("model"));
    }
    let input = match request.input.ok_or_else(|| required("input"))? {
        wire::generate_request::Input::Messages(messages) => Input::Chat(chat(messages).map_err(invalid)?),
        wire::generate_request::Input::Text(text) => Input::Text(text),
        wire::generate_request::Input::TokenIds(ids) => Input::Tokens(ids.token_ids),
    };
    let sampling = request.sampling.unwrap_or_default();
    let stop = request.stop.unwrap_or_default();
    let float = |value: Option<f32>| value.map(f64::from);
    let integer = |value: Option<u32>| value.map(i128::from);
    let draft = Draft {
        n: integer(request.n),
        temperature: float(sampling.temperature),
        top_p: float(sampling.top_p),
        top_k: integer(sampling.top_k),
        min_p: float(sampling.min_p),
        presence_penalty: float(sampling.presence_penalty),
        frequency_penalty: float(sampling.frequency_penalty),
        repetition_penalty: float(sampling.repetition_penalty),
        logit_bias: sampling.logit_bias.iter().map(|(id, bias)| (id.to_string(), f64::from(*bias))).collect(),
        seed: sampling.seed.map(i128::from),
        logprobs: integer(sampling.logprobs),
        logprobs_name: "logprobs",
        max_tokens: integer(stop.max_tokens),
        max_tokens_name: "max_tokens",
        min_tokens: Some(stop.min_tokens.into()),
        stop_token_ids: stop.stop_token_ids.iter().map(|id| i128::from(*id)).collect(),
        ignore_eos: stop.ignore_eos,
        stop: request.stop_strings,
        cache_salt: request.cache_salt,
    };
    Ok(Ask {
        model: request.model,
        input,
        params: draft.check().map_err(invalid)?,
        priority: request.priority,
        session: session(request.session).map_err(invalid)?,
        skip_special_tokens: true,
    })
}

/// The field that holds the prompt.
pub fn prompt_field(request: &wire::GenerateRequest) -> &'static str {
    match request.input {
        Some(wire::generate_request::Input::Messages(_)) => "messages",
        Some(wire::generate_request::Input::Text(_)) => "text",
        Some(wire::generate_request::Input::TokenIds(_)) => "token_ids",
        None => "input",
    }
}

/// A conversation.
pub fn chat(messages: wire::ChatMessages) -> Result<Chat, Invalid> {
    if messages.messages.is_empty() {
        return Err(Invalid::new("messages", "must hold at least one message"));
    }
    let each = |(i, message): (usize, wire::ChatMessage)| {
        if message.role.is_empty() {
            return Err(Invalid::new(format!("messages[{i}].role"), "is required"));
        }
        let name = (!message.name.is_empty()).then_some(message.name);
        Ok(Message { role: message.role, content: message.content, name })
    };
    let messages = messages.messages.into_iter().enumerate().map(each).collect::<Result<_, _>>()?;
    Ok(Chat { messages, add_generation_prompt: true, variables: serde_json::Map::new() })
}

fn session(session: Option<wire::Session>) -> Result<Session, Invalid> {
    let Some(session) = session else { return Ok(Session::default()) };
    if session.id.len() > MAX_SESSION_BYTES {
        let message = format!("{} bytes, the limit is {MAX_SESSION_BYTES}", session.id.len());
        return Err(Invalid::new("session.id", message));
    }
    let continues = match session.hint() {
        wire::SessionHint::Continues => Some(true),
        wire::SessionHint::Ends => Some(false),
        wire::SessionHint::Unspecified => None,
    };
    Ok(Session { id: session.id, continues })
}

/// The first message of an answer.
pub fn started(generation: &Generation) -> wire::GenerateResponse {
    let (request, opened) = (generation.request(), generation.opened());
    response(wire::generate_response::Event::Started(wire::Started {
        request_id: request.caller.request_id().to_owned(),
        model: request.model.clone(),
        prompt_tokens: u32::try_from(request.tokens.len()).unwrap_or(u32::MAX),
        seed: request.seed,
        decode_worker: opened.decode_worker,
        prefill_worker: opened.prefill_worker,
        decision_id: opened.decision_id,
    }))
}

/// What is new in a choice; `tokens`: with the tokens.
pub fn delta(delta: Delta, tokens: bool) -> wire::GenerateResponse {
    response(wire::generate_response::Event::Delta(wire::TextDelta {
        choice: delta.choice,
        text: delta.text,
        tokens: if tokens { delta.tokens.into_iter().map(token).collect() } else { Vec::new() },
        finish_reason: match delta.finish {
            None => wire::FinishReason::Unspecified,
            Some(Finish::Stop) => wire::FinishReason::Stop,
            Some(Finish::Length) => wire::FinishReason::Length,
        }
        .into(),
    }))
}

/// The last message.
pub fn finished(summary: &Summary) -> wire::GenerateResponse {
    response(wire::generate_response::Event::Finished(wire::Finished {
        usage: Some(wire::Usage {
            prompt_tokens: summary.prompt_tokens,
            completion_tokens: summary.completion_tokens,
            cached_tokens: summary.phases.cached,
            transferred_tokens: summary.phases.transferred,
            computed_tokens: summary.phases.computed,
            cached_by_tier: Vec::new(),
            remote_computed_tokens: summary.phases.remote_computed,
        }),
        migrations: summary.migrations,
        migrated_inexact: summary.migrated_inexact,
    }))
}

fn token(token: Token) -> wire::TokenInfo {
    wire::TokenInfo {
        token_id: token.id,
        logprob: token.logprob,
        top: token
            .top
            .into_iter()
            .map(|(token_id, logprob)| wire::TokenAlternative { token_id, logprob })
            .collect(),
    }
}

fn response(event: wire::generate_response::Event) -> wire::GenerateResponse {
    wire::GenerateResponse { event: Some(event) }
}
