//! Log probabilities in the shapes of both APIs. They are written as the 64-bit number that the 32-bit one is, so that a stream and a
//! whole answer, which is put together from JSON values, have the same digits.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::domain::text::Token;
use crate::models::tokenizer::ModelTokenizer;

/// What stands for a probability of 0, which JSON cannot say; OpenAI's value for "very unlikely".
const NEVER: f32 = -9999.0;

/// Chat's shape.
#[derive(Debug, Default, Serialize)]
pub struct ChatLogprobs {
    content: Vec<ChatToken>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: Scored,
    top_logprobs: Vec<Scored>,
}

#[derive(Debug, Serialize)]
struct Scored {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// The shape of completions: parallel lists.
#[derive(Debug, Default, Serialize)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

/// Of `tokens`, for a chat choice.
pub fn chat(tokens: &[Token], tokenizer: &ModelTokenizer) -> ChatLogprobs {
    let each = |token: &Token| ChatToken {
        token: scored(token.id, token.logprob.unwrap_or(NEVER), tokenizer),
        top_logprobs: token.top.iter().map(|(id, logprob)| scored(*id, *logprob, tokenizer)).collect(),
    };
    ChatLogprobs { content: tokens.iter().map(each).collect() }
}

/// Of `tokens`, for a completion; `offset` counts the characters of the choice's tokens so far.
pub fn text(tokens: &[Token], tokenizer: &ModelTokenizer, offset: &mut usize) -> TextLogprobs {
    let mut logprobs = TextLogprobs::default();
    for token in tokens {
        let text = scored(token.id, token.logprob.unwrap_or(NEVER), tokenizer);
        logprobs.text_offset.push(*offset);
        *offset += text.token.chars().count();
        logprobs.token_logprobs.push(text.logprob);
        logprobs.tokens.push(text.token);
        let top = token.top.iter().map(|(id, logprob)| scored(*id, *logprob, tokenizer));
        logprobs.top_logprobs.push(top.map(|it| (it.token, Value::from(it.logprob))).collect());
    }
    logprobs
}

fn scored(id: u32, logprob: f32, tokenizer: &ModelTokenizer) -> Scored {
    let bytes = tokenizer.token_bytes(id);
    let logprob = f64::from(if logprob.is_finite() { logprob } else { NEVER });
    Scored { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
}
