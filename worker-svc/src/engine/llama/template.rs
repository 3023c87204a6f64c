//! What a frontend needs besides the tokenizer to turn messages into a prompt, as JSON:
//! `{"chat_template": text or null, "bos_token": text or null, "eos_token": text or null,
//! "add_bos": bool}`.

use serde::Serialize;

use super::gguf::{Gguf, GgufError};
use super::tokenizer::Pre;

/// Most bytes of a chat template; the longest published ones have about 20 KiB.
const MAX_TEMPLATE: usize = 1 << 20;

#[derive(Serialize)]
struct Template<'a> {
    chat_template: Option<&'a str>,
    bos_token: Option<&'a str>,
    eos_token: Option<&'a str>,
    add_bos: bool,
}

/// Builds the artifact.
///
/// # Errors
/// A key has the wrong type, names a token that is not there, or the template is absurdly long.
pub(super) fn template_json(file: &Gguf<'_>, pre: Pre) -> Result<Vec<u8>, GgufError> {
    let tokens = file.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let token = |key: &str| -> Result<Option<&str>, GgufError> {
        let id = file.integer(key, tokens.len().saturating_sub(1))?;
        Ok(id.and_then(|id| tokens.get(id).copied()))
    };
    let chat_template = file.text("tokenizer.chat_template")?;
    if let Some(value) = chat_template.map(str::len).filter(|len| *len > MAX_TEMPLATE) {
        let what = "the length of tokenizer.chat_template".to_owned();
        return Err(GgufError::Absurd { what, value: value as u64, limit: MAX_TEMPLATE as u64 });
    }
    let template = Template {
        chat_template,
        bos_token: token("tokenizer.ggml.bos_token_id")?,
        eos_token: token("tokenizer.ggml.eos_token_id")?,
        add_bos: file.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(pre.adds_bos()),
    };
    Ok(serde_json::to_vec(&template).expect("text and a flag are JSON"))
}
