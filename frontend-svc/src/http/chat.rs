//! The body of POST /v1/chat/completions.

use serde_json::Value;

use super::fields::{Fields, Streaming, wrong};
use crate::domain::params::Invalid;
use crate::domain::prompt::{Ask, Chat, Input, Message, Session};

/// What chat adds to the parameters that nobody here honours.
const UNSUPPORTED: &[&str] = &[
    "tools",
    "functions",
    "function_call",
    "audio",
    "chat_template",
    "continue_final_message",
    "web_search_options",
];

/// A chat request.
#[derive(Debug)]
pub struct ChatRequest {
    /// What is asked.
    pub ask: Ask,
    /// How it is answered.
    pub streaming: Streaming,
}

impl ChatRequest {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::parse(body)?;
        let model = fields.required("model")?;
        for name in UNSUPPORTED {
            fields.refuse(name)?;
        }
        refuse_choices(&mut fields)?;
        let mut draft = fields.draft()?;
        if let Some(limit) = fields.integer("max_completion_tokens")? {
            (draft.max_tokens, draft.max_tokens_name) = (Some(limit), "max_completion_tokens");
        }
        let wanted = fields.flag("logprobs")?.unwrap_or(false);
        draft.logprobs_name = "top_logprobs";
        draft.logprobs = fields.integer("top_logprobs")?;
        match (wanted, draft.logprobs) {
            (true, None) => draft.logprobs = Some(0),
            (false, Some(0)) => draft.logprobs = None,
            (false, Some(_)) => {
                return Err(Invalid::new("top_logprobs", "is only allowed when logprobs is true"));
            }
            _ => {}
        }
        let streaming = fields.streaming()?;
        let chat = Chat {
            messages: messages(fields.take("messages"))?,
            add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
            variables: fields.object("chat_template_kwargs")?.unwrap_or_default(),
        };
        let ask = Ask {
            model,
            input: Input::Chat(chat),
            params: draft.check()?,
            priority: 0,
            session: Session::default(),
            skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
        };
        Ok(Self { ask, streaming })
    }
}

fn refuse_choices(fields: &mut Fields) -> Result<(), Invalid> {
    match fields.take("tool_choice") {
        None => {}
        Some(Value::String(choice)) if choice == "none" || choice == "auto" => {}
        Some(_) => return Err(Invalid::new("tool_choice", "tools are not supported by this server")),
    }
    if let Some(format) = fields.object("response_format")?
        && format.get("type").and_then(Value::as_str) != Some("text")
    {
        return Err(Invalid::new("response_format", "only {\"type\": \"text\"} is supported by this server"));
    }
    match fields.take("modalities") {
        None => Ok(()),
        Some(Value::Array(kinds)) if kinds.iter().all(|kind| kind == "text") => Ok(()),
        Some(_) => Err(Invalid::new("modalities", "only text is supported by this server")),
    }
}

fn messages(value: Option<Value>) -> Result<Vec<Message>, Invalid> {
    match value {
        None => Err(Invalid::new("messages", "is required")),
        Some(Value::Array(turns)) if turns.is_empty() => {
            Err(Invalid::new("messages", "must hold at least one message"))
        }
        Some(Value::Array(turns)) => {
            turns.into_iter().enumerate().map(|(i, turn)| message(i, turn)).collect()
        }
        Some(other) => Err(wrong("messages", "a list of messages", &other)),
    }
}

fn message(i: usize, turn: Value) -> Result<Message, Invalid> {
    let at = |field: &str| format!("messages[{i}]{field}");
    let Value::Object(mut turn) = turn else { return Err(wrong(&at(""), "an object", &turn)) };
    let role = match turn.remove("role") {
        Some(Value::String(role)) if !role.is_empty() => role,
        Some(Value::String(_)) => return Err(Invalid::new(at(".role"), "must not be empty")),
        None | Some(Value::Null) => return Err(Invalid::new(at(".role"), "is required")),
        Some(other) => return Err(wrong(&at(".role"), "a string", &other)),
    };
    if role == "tool" || role == "function" {
        return Err(Invalid::new(at(".role"), format!("{role}: tools are not supported by this server")));
    }
    if turn.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
        return Err(Invalid::new(at(".tool_calls"), "tools are not supported by this server"));
    }
    let name = match turn.remove("name") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => Some(name),
        Some(other) => return Err(wrong(&at(".name"), "a string", &other)),
    };
    let content = match turn.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts_text(&at(".content"), parts)?,
        None | Some(Value::Null) if role == "assistant" => String::new(),
        None | Some(Value::Null) => return Err(Invalid::new(at(".content"), "is required")),
        Some(other) => return Err(wrong(&at(".content"), "a string or a list of parts", &other)),
    };
    Ok(Message { role, content, name })
}

/// Text parts, one a line, as vLLM joins them.
fn parts_text(at: &str, parts: Vec<Value>) -> Result<String, Invalid> {
    let mut texts = Vec::with_capacity(parts.len());
    for (i, part) in parts.into_iter().enumerate() {
        let Value::Object(mut part) = part else {
            return Err(wrong(&format!("{at}[{i}]"), "an object", &part));
        };
        match part.get("type").and_then(Value::as_str) {
            Some("text") => {}
            Some(kind) => {
                let message = format!("{kind}: only text is supported by this server");
                return Err(Invalid::new(format!("{at}[{i}].type"), message));
            }
            None => return Err(Invalid::new(format!("{at}[{i}].type"), "is required")),
        }
        match part.remove("text") {
            Some(Value::String(text)) => texts.push(text),
            Some(other) => return Err(wrong(&format!("{at}[{i}].text"), "a string", &other)),
            None => return Err(Invalid::new(format!("{at}[{i}].text"), "is required")),
        }
    }
    Ok(texts.join("\n"))
}
