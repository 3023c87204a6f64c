//! Hugging Face's tokenizers as the domain's vocabulary.

use tokenizers::Tokenizer;

use crate::domain::openai::retokenize::Vocabulary;

/// A `tokenizer.json`, read.
pub(super) struct JsonVocabulary(Tokenizer);

impl JsonVocabulary {
    /// Reads it. Truncation and padding of its own are switched off: they would change texts silently.
    pub(super) fn parse(json: &[u8]) -> Result<Self, tokenizers::Error> {
        let mut inner = Tokenizer::from_bytes(json)?;
        inner.with_padding(None);
        inner.with_truncation(None)?;
        Ok(Self(inner))
    }

    /// One more than the largest id.
    pub(super) fn size(&self) -> usize {
        self.0.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1)
    }

    /// The id of a token by its name.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }
}

impl Vocabulary for JsonVocabulary {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default()
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.0.decode(ids, false).unwrap_or_default()
    }
}
