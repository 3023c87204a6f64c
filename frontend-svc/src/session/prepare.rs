//! From a checked request to tokens and hashes: everything that can be refused is refused here, before any worker is asked.

use std::sync::Arc;

use armature_contracts::error::{Fault, Reason};
use armature_kv_hash::{RootKey, RootParts, sequence_hashes};
use jiff::ZonedDateTime;

use super::caller::Caller;
use crate::domain::deaths::Fingerprint;
use crate::domain::detokenize::Detokenizer;
use crate::domain::params::Params;
use crate::domain::prompt::{Ask, Chat, Input, Session};
use crate::models::catalogue::ServedSet;
use crate::models::template::RenderError;
use crate::models::tokenizer::ModelTokenizer;

/// Longer texts are tokenized off the runtime threads: about a millisecond of work.
const INLINE_BYTES: usize = 4096;
/// Last tokens of a text prompt that its continuation is decoded behind.
const TAIL: usize = 4;

/// A request that is ready to be routed.
#[derive(Debug)]
pub struct Prepared {
    /// Who asks.
    pub caller: Caller,
    /// The name that was asked for.
    pub model: String,
    /// Whose workers may run it.
    pub set: Arc<ServedSet>,
    /// The deployment.
    pub namespace: String,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Sequence hashes of its full blocks.
    pub hashes: Vec<u64>,
    /// How to go on; with a seed.
    pub params: Params,
    /// The seed in it.
    pub seed: u64,
    /// Most tokens per choice: the limit asked for, or what is left of the context.
    pub max_tokens: u32,
    /// Higher goes first.
    pub priority: i32,
    /// The conversation.
    pub session: Session,
    /// Whether special tokens have no text.
    pub skip_special_tokens: bool,
    /// The prompt is a text that the answer continues.
    continues_text: bool,
}

impl Prepared {
    /// What equal requests have in common.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.tokens, &self.params)
    }

    /// How the text of a choice begins.
    pub fn detokenizer(&self) -> Detokenizer {
        if !self.continues_text {
            return Detokenizer::new();
        }
        let tail = &self.tokens[self.tokens.len().saturating_sub(TAIL)..];
        Detokenizer::after(tail, &self.set.tokenizer.decoder(self.skip_special_tokens))
    }

    /// Tokens that have no text when a worker ends a choice with them.
    pub fn silent_tokens(&self) -> Vec<u32> {
        let ends = if self.params.ignore_eos { &[] } else { self.set.end_tokens.as_slice() };
        ends.iter().chain(&self.params.stop_token_ids).copied().collect()
    }
}

/// Renders, tokenizes, checks against the model's limits and hashes. `draw` is the seed of a request that names none.
pub async fn prepare(
    ask: Ask,
    caller: Caller,
    set: Arc<ServedSet>,
    namespace: &str,
    now: ZonedDateTime,
    draw: u64,
) -> Result<Prepared, Fault> {
    let Ask { model, input, mut params, priority, session, skip_special_tokens } = ask;
    check_against(&params, &set)?;
    let param = input.param();
    let continues_text = !matches!(input, Input::Chat(_));
    let tokens = tokens_of(input, &set, now).await?;
    let max_tokens = fit(param, tokens.len(), params.max_tokens, set.context_length)?;
    let seed = *params.sampling.seed.get_or_insert(draw);
    let root = RootKey::new(&RootParts {
        model_digest: set.key.model.as_bytes(),
        adapter_digest: &[],
        tenant: &caller.tenant,
        cache_salt: &params.cache_salt,
    });
    let hashes = sequence_hashes(root, set.block_size as usize, &tokens);
    Ok(Prepared {
        caller,
        model,
        set,
        namespace: namespace.to_owned(),
        tokens,
        hashes,
        params,
        seed,
        max_tokens,
        priority,
        session,
        skip_special_tokens,
        continues_text,
    })
}

/// Tokens of a conversation or a text, with the beginning that the model requires.
pub async fn tokens_of(input: Input, set: &ServedSet, now: ZonedDateTime) -> Result<Vec<u32>, Fault> {
    match input {
        Input::Tokens(ids) => {
            check_ids("prompt", &ids, set)?;
            Ok(ids)
        }
        Input::Text(text) => encode(text, true, set).await,
        Input::Chat(chat) => {
            let text = render(chat, set, now).await?;
            encode(text, false, set).await
        }
    }
}

/// Refuses ids that the model does not have; `param` holds them.
pub fn check_ids(param: &str, ids: &[u32], set: &ServedSet) -> Result<(), Fault> {
    let Some(id) = ids.iter().find(|id| **id >= set.vocabulary) else { return Ok(()) };
    let message = format!("{id} is not a token id of this model: they are below {}", set.vocabulary);
    Err(Fault::invalid(param, message))
}

async fn render(chat: Chat, set: &ServedSet, now: ZonedDateTime) -> Result<String, Fault> {
    let template = set.template.clone();
    let length: usize = chat.messages.iter().map(|it| it.content.len()).sum();
    // Variables may make a template do more than its messages ask for.
    let long = length > INLINE_BYTES || !chat.variables.is_empty();
    let rendered = off_runtime(long, move || template.render(&chat, now)).await?;
    rendered.map_err(|error| match error {
        RenderError::NoTemplate => Fault::invalid("messages", error.to_string()),
        RenderError::Refused(_) => Fault::invalid("messages", error.to_string()),
    })
}

async fn encode(text: String, special: bool, set: &ServedSet) -> Result<Vec<u32>, Fault> {
    let tokenizer = set.tokenizer.clone();
    let long = text.len() > INLINE_BYTES;
    let encoded = off_runtime(long, move || tokenizer.encode(&text, special)).await?;
    let ids = encoded.map_err(|error| Fault::new(Reason::Internal, error.to_string()))?;
    Ok(begin(ids, set.template.required_bos(), &set.tokenizer))
}

/// Puts the required first token there, once.
fn begin(mut ids: Vec<u32>, bos: Option<&str>, tokenizer: &ModelTokenizer) -> Vec<u32> {
    if let Some(bos) = bos.and_then(|bos| tokenizer.id(bos))
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    ids
}

async fn off_runtime<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    if !long {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| Fault::new(Reason::Internal, error.to_string()))
}

fn check_against(params: &Params, set: &ServedSet) -> Result<(), Fault> {
    let outside = |id: &&u32| **id >= set.vocabulary;
    if let Some(id) = params.stop_token_ids.iter().find(outside) {
        return Err(Fault::invalid("stop_token_ids", format!("{id} is not a token id of this model")));
    }
    if let Some(id) = params.sampling.logit_bias.keys().find(outside) {
        return Err(Fault::invalid("logit_bias", format!("{id} is not a token id of this model")));
    }
    if params.sampling.logprobs.is_some_and(|asked| asked > set.max_logprobs) {
        return Err(Fault::invalid("logprobs", format!("this model gives at most {}", set.max_logprobs)));
    }
    Ok(())
}

/// Tokens that a choice may have.
fn fit(param: &str, prompt: usize, asked: Option<u32>, context: u32) -> Result<u32, Fault> {
    if prompt == 0 {
        return Err(Fault::invalid(param, "must hold at least one token"));
    }
    let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
    let exceeded = |message: String| {
        let mut fault = Fault::new(Reason::ContextLengthExceeded, message.clone());
        fault.violations.push((param.to_owned(), message));
        fault
    };
    if prompt >= context {
        return Err(exceeded(format!(
            "this model's context length is {context} tokens, the prompt alone has {prompt}: shorten it"
        )));
    }
    let left = context - prompt;
    match asked {
        Some(asked) if asked > left => Err(exceeded(format!(
            "this model's context length is {context} tokens, asked were {prompt} in the prompt and {asked} to be \
             generated: shorten either"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn prompt_and_answer_fit_the_context() {
        assert_eq!(fit("prompt", 10, None, 16).unwrap(), 6);
        assert_eq!(fit("prompt", 10, Some(6), 16).unwrap(), 6);
        for (prompt, asked) in [(16, None), (usize::MAX, None), (10, Some(7)), (10, Some(u32::MAX))] {
            let fault = fit("messages", prompt, asked, 16).unwrap_err();
            assert_eq!(fault.reason, Reason::ContextLengthExceeded);
            assert_eq!(fault.violations[0].0, "messages");
        }
        assert_eq!(fit("prompt", 0, None, 16).unwrap_err().reason, Reason::InvalidArgument);
    }
}
