//! Tokenizer and template of a model file, for who does not run it.

use std::path::Path;

use super::gguf::Gguf;
use super::mapping;
use super::model::{LoadError, end_tokens};
use super::template::template_json;
use super::tokenizer::{Pre, tokenizer_json};

/// What a GGUF file says for those who see text. Its tensors are not looked at: it may be of any architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifacts {
    /// `tokenizer.json` of Hugging Face's tokenizers.
    pub tokenizer: Vec<u8>,
    /// `{chat_template, bos_token, eos_token, add_bos}`.
    pub template: Vec<u8>,
    /// Tokens that end a generation.
    pub end_tokens: Vec<u32>,
    /// Longest sequence in tokens, if it says so.
    pub context_length: Option<usize>,
}

impl Artifacts {
    /// Reads them from the file at `path`.
    ///
    /// # Errors
    /// [`LoadError`]: it cannot be read, or its vocabulary is of an unknown kind.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        if path.is_dir() {
            return Err(LoadError::Folder);
        }
        let bytes = mapping::map(path).map_err(LoadError::File)?;
        let file = Gguf::parse(&bytes)?;
        let pre = Pre::read(&file)?;
        let vocab = file.texts("tokenizer.ggml.tokens")?.map_or(0, |tokens| tokens.len()).max(1);
        let architecture = file.text("general.architecture")?.unwrap_or_default();
        let context_length = file.integer(&format!("{architecture}.context_length"), usize::MAX)?;
        Ok(Self {
            tokenizer: tokenizer_json(&file, pre, vocab)?,
            template: template_json(&file, pre)?,
            end_tokens: end_tokens(&file, vocab)?,
            context_length,
        })
    }
}
