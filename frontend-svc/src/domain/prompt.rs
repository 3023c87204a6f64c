//! What a client wants continued, and for how long.

use serde::Serialize;
use serde_json::{Map, Value};

use super::params::Params;

/// The text or tokens to continue.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Rendered with the model's template.
    Chat(Chat),
    /// Tokenized as it stands.
    Text(String),
    /// Token ids as they stand.
    Tokens(Vec<u32>),
}

impl Input {
    /// Name of the parameter that holds it.
    pub fn param(&self) -> &'static str {
        match self {
            Self::Chat(_) => "messages",
            Self::Text(_) | Self::Tokens(_) => "prompt",
        }
    }
}

/// A conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// At least one.
    pub messages: Vec<Message>,
    /// Ends the prompt with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Additional variables of the template.
    pub variables: Map<String, Value>,
}

/// One turn of it, as templates see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// "system", "user", "assistant" or what else the template knows.
    pub role: String,
    /// Text.
    pub content: String,
    /// Name of the speaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A hint for caches: which conversation a request belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// Its id; empty without one.
    pub id: String,
    /// `Some(true)`: more is to come; `Some(false)`: this was the last turn.
    pub continues: Option<bool>,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// Served name or alias.
    pub model: String,
    /// What to continue.
    pub input: Input,
    /// How.
    pub params: Params,
    /// Higher goes first; 0 is normal.
    pub priority: i32,
    /// The conversation.
    pub session: Session,
    /// Whether special tokens have no text (the default of the APIs).
    pub skip_special_tokens: bool,
}
