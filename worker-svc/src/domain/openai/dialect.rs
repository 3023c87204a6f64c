//! Kinds of engines, and what each can be asked for.

use std::fmt;

/// A kind of engine: who is known to take what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/completions` as OpenAI documents it, and nothing else.
    OpenAi,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's server.
    LlamaCpp,
}

impl Dialect {
    /// The engine's name on cards and in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llamacpp",
        }
    }

    /// The kind that calls itself `owned_by` in `/v1/models`.
    pub fn of_owner(owned_by: &str) -> Self {
        match owned_by {
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            "llamacpp" => Self::LlamaCpp,
            _ => Self::OpenAi,
        }
    }

    /// Where it is asked to generate.
    pub fn generate_path(self) -> &'static str {
        match self {
            // Its own call tells the tokens' ids; its OpenAI face does not.
            Self::LlamaCpp => "/completion",
            Self::OpenAi | Self::Vllm | Self::Sglang => "/v1/completions",
        }
    }

    /// What is asked to see whether it answers at all; cheap for every one of them.
    pub fn health_path(self) -> &'static str {
        match self {
            Self::OpenAi => "/v1/models",
            Self::Vllm | Self::Sglang | Self::LlamaCpp => "/health",
        }
    }

    /// Most alternatives per token that it names by id; `None`: no log-probabilities that could be told by id.
    pub fn max_logprobs(self) -> Option<u8> {
        match self {
            Self::Vllm | Self::LlamaCpp => Some(crate::domain::sampling::MAX_LOGPROBS),
            // The chosen token's own; alternatives come as text that several tokens share.
            Self::Sglang => Some(0),
            Self::OpenAi => None,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a prompt is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptForm {
    /// As token ids, exactly those that the frontend made.
    Ids,
    /// As their text, which the engine cuts into tokens itself.
    Text {
        /// The engine puts a begin-of-sequence token before it.
        adds_bos: bool,
    },
}

/// What an engine has been seen to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Its kind.
    pub dialect: Dialect,
    /// How it takes prompts.
    pub prompt: PromptForm,
    /// It tells the ids of the tokens that it generates.
    pub tells_ids: bool,
}

impl Abilities {
    /// Names for the card: what routers and people can rely on.
    pub fn capabilities(&self) -> Vec<String> {
        let mut names = vec!["sampling", "migrate", KV_EVENTS_NONE];
        names.push(match self.prompt {
            PromptForm::Ids => "prompt-ids",
            PromptForm::Text { .. } => "prompt-text",
        });
        names.push(if self.tells_ids { "answer-ids" } else { "answer-retokenized" });
        if self.max_logprobs().is_some() {
            names.push("logprobs");
        }
        names.into_iter().map(String::from).collect()
    }

    /// As [`Dialect::max_logprobs`], of an engine that may not tell ids.
    pub fn max_logprobs(&self) -> Option<u8> {
        self.dialect.max_logprobs().filter(|_| self.tells_ids)
    }
}

/// Capability of a worker that tells nothing of its blocks: a router believes what it has decided itself.
pub const KV_EVENTS_NONE: &str = "kv-events-none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_what_is_exact_and_what_is_not() {
        let exact = Abilities { dialect: Dialect::Vllm, prompt: PromptForm::Ids, tells_ids: true };
        let names = ["sampling", "migrate", "kv-events-none", "prompt-ids", "answer-ids", "logprobs"];
        assert_eq!(exact.capabilities(), names);
        let text = PromptForm::Text { adds_bos: true };
        let plain = Abilities { dialect: Dialect::OpenAi, prompt: text, tells_ids: false };
        let names = ["sampling", "migrate", "kv-events-none", "prompt-text", "answer-retokenized"];
        assert_eq!(plain.capabilities(), names);
    }

    #[test]
    fn engines_are_known_by_what_they_call_themselves() {
        for dialect in [Dialect::Vllm, Dialect::Sglang, Dialect::LlamaCpp] {
            assert_eq!(Dialect::of_owner(dialect.name()), dialect);
        }
        assert_eq!(Dialect::of_owner("organization-owner"), Dialect::OpenAi);
    }
}
