//! What an engine does, seen by asking it once: whether it takes token ids, and tells them.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::call;
use super::client::{CallError, EngineClient};
use super::vocabulary::JsonVocabulary;
use crate::domain::openai::dialect::{Abilities, Dialect, PromptForm};
use crate::domain::openai::retokenize::Vocabulary as _;

/// Longest wait for one token: an engine may compile something first.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest answer.
const MAX_ANSWER: usize = 1 << 20;
/// A few common words; most vocabularies cut them into one token each.
const SAMPLE: &str = "The river runs to the sea";

/// What the engine answered instead.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nothing.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An error.
    #[error("it refuses to generate one token ({status}): {said}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// Its words.
        said: String,
    },
    /// Something else.
    #[error("its answer to a request for one token is not understood")]
    Malformed,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
}

/// Asks for one token in every way that matters.
///
/// # Errors
/// [`ProbeError`]: it does not generate.
pub(super) async fn abilities(
    client: &EngineClient,
    dialect: Dialect,
    model: &str,
    vocabulary: &JsonVocabulary,
) -> Result<Abilities, ProbeError> {
    let sample = vocabulary.encode(SAMPLE);
    if dialect == Dialect::LlamaCpp {
        // Its own call has always taken and told ids; the answer says whether the tokenizer is its own.
        ask(client, dialect, json!({"prompt": sample, "n_predict": 1, "return_tokens": true})).await?;
        return Ok(Abilities { dialect, prompt: PromptForm::Ids, tells_ids: true });
    }
    let request = |prompt: Value, ids: bool| {
        let mut body = json!({"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0});
        if ids {
            body["return_token_ids"] = json!(true);
        }
        body
    };
    let text = vocabulary.decode(&sample);
    let forms = [(json!(sample), true), (json!(sample), false), (json!(text), true), (json!(text), false)];
    let mut refusal = ProbeError::Malformed;
    for (prompt, ids) in forms {
        let by_ids = prompt.is_array();
        let answer = match ask(client, dialect, request(prompt, ids)).await {
            Err(refused @ ProbeError::Refused { status, .. }) if status.is_client_error() => {
                refusal = refused;
                continue;
            }
            answer => answer?,
        };
        let completion: Completion = serde_json::from_value(answer).map_err(|_| ProbeError::Malformed)?;
        let counted = completion.usage.map(|usage| usage.prompt_tokens);
        if by_ids && counted != Some(sample.len()) {
            // It took the numbers for something else, or does not say what it took them for.
            continue;
        }
        let tells_ids = completion.choices.first().is_some_and(|choice| choice.token_ids.is_some());
        let prompt = match by_ids {
            true => PromptForm::Ids,
            false => PromptForm::Text { adds_bos: counted == Some(sample.len() + 1) },
        };
        return Ok(Abilities { dialect, prompt, tells_ids });
    }
    Err(refusal)
}

async fn ask(client: &EngineClient, dialect: Dialect, body: Value) -> Result<Value, ProbeError> {
    let call = async {
        let answer = client.post(dialect.generate_path(), &body).await?;
        let status = answer.status;
        Ok::<_, CallError>((status, answer.whole(MAX_ANSWER).await?))
    };
    let (status, body) = timeout(PATIENCE, call).await.map_err(|_| CallError::Silent(PATIENCE))??;
    if status != StatusCode::OK {
        return Err(ProbeError::Refused { status, said: call::said(&body) });
    }
    serde_json::from_slice(&body).map_err(|_| ProbeError::Malformed)
}
