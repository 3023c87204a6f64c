//! The body of POST /v1/completions.

use serde_json::Value;

use super::fields::{Fields, Streaming, integer, wrong};
use crate::domain::params::Invalid;
use crate::domain::prompt::{Ask, Input, Session};

/// Most prompts of one call.
pub const MAX_PROMPTS: usize = 256;
/// Tokens that OpenAI generates when nothing is said.
const DEFAULT_MAX_TOKENS: i128 = 16;

/// A completion request.
#[derive(Debug)]
pub struct CompletionRequest {
    /// One for each prompt.
    pub asks: Vec<Ask>,
    /// How they are answered.
    pub streaming: Streaming,
    /// The answer begins with the prompt.
    pub echo: bool,
}

impl CompletionRequest {
    /// Reads a body.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let mut fields = Fields::parse(body)?;
        let model = fields.required("model")?;
        fields.refuse("suffix")?;
        fields.refuse("prompt_embeds")?;
        let mut draft = fields.draft()?;
        draft.max_tokens = draft.max_tokens.or(Some(DEFAULT_MAX_TOKENS.max(draft.min_tokens.unwrap_or(0))));
        draft.logprobs = fields.integer("logprobs")?;
        let best_of = fields.integer("best_of")?;
        if best_of.is_some_and(|best| best != draft.n.unwrap_or(1)) {
            return Err(Invalid::new("best_of", "is only supported when it equals n"));
        }
        let echo = fields.flag("echo")?.unwrap_or(false);
        if echo && draft.logprobs.is_some() {
            return Err(Invalid::new("logprobs", "is not supported together with echo"));
        }
        let streaming = fields.streaming()?;
        let skip_special_tokens = fields.flag("skip_special_tokens")?.unwrap_or(true);
        let params = draft.check()?;
        let ask = |input| Ask {
            model: model.clone(),
            input,
            params: params.clone(),
            priority: 0,
            session: Session::default(),
            skip_special_tokens,
        };
        let asks = prompts(fields.take("prompt"))?.into_iter().map(ask).collect();
        Ok(Self { asks, streaming, echo })
    }
}

fn prompts(value: Option<Value>) -> Result<Vec<Input>, Invalid> {
    let items = match value {
        None => return Err(Invalid::new("prompt", "is required")),
        Some(Value::String(text)) => return Ok(vec![text_prompt("prompt", text)?]),
        Some(Value::Array(items)) if items.is_empty() => {
            return Err(Invalid::new("prompt", "must not be empty"));
        }
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong("prompt", EXPECTED, &other)),
    };
    if items[0].is_number() {
        return Ok(vec![ids("prompt", &items)?]);
    }
    if items.len() > MAX_PROMPTS {
        return Err(Invalid::new("prompt", format!("{} prompts, the limit is {MAX_PROMPTS}", items.len())));
    }
    let all_text = items[0].is_string();
    let each = |(i, item): (usize, Value)| {
        let name = format!("prompt[{i}]");
        match item {
            Value::String(text) if all_text => text_prompt(&name, text),
            Value::Array(list) if !all_text => ids(&name, &list),
            other => Err(wrong(&name, EXPECTED, &other)),
        }
    };
    items.into_iter().enumerate().map(each).collect()
}

const EXPECTED: &str = "a string, a list of strings, a list of token ids or a list of such lists";

fn text_prompt(name: &str, text: String) -> Result<Input, Invalid> {
    if text.is_empty() { Err(Invalid::new(name, "must not be empty")) } else { Ok(Input::Text(text)) }
}

fn ids(name: &str, items: &[Value]) -> Result<Input, Invalid> {
    if items.is_empty() {
        return Err(Invalid::new(name, "must not be empty"));
    }
    let each = |item: &Value| {
        let id = integer(item).ok_or_else(|| wrong(name, "a list of token ids", item))?;
        u32::try_from(id).map_err(|_| Invalid::new(name, format!("{id} is not a token id")))
    };
    Ok(Input::Tokens(items.iter().map(each).collect::<Result<_, _>>()?))
}
