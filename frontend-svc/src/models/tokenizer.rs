//! A model's tokenizer: text to tokens, tokens to text, and the bytes of one token.

use std::collections::HashMap;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Decoder as _, Tokenizer};

use crate::domain::detokenize::Decode;

/// A tokenizer as `tokenizer.json` describes it.
#[derive(Debug)]
pub struct ModelTokenizer {
    inner: Tokenizer,
    /// For byte-level vocabularies: which byte a character of a token stands for.
    bytes: Option<HashMap<char, u8>>,
}

/// Text or an artifact that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {0}")]
pub struct TokenizerError(String);

impl ModelTokenizer {
    /// Reads a `tokenizer.json`. Truncation and padding of its own are switched off: they would change prompts silently.
    pub fn parse(json: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = Tokenizer::from_bytes(json).map_err(|error| TokenizerError(error.to_string()))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokenizerError(error.to_string()))?;
        let byte_level = inner.get_decoder().is_some_and(is_byte_level);
        Ok(Self { inner, bytes: byte_level.then(byte_alphabet) })
    }

    /// Tokens of `text`; `special`: with those that the tokenizer adds at its ends.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding =
            self.inner.encode_fast(text, special).map_err(|error| TokenizerError(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The id of a token by its name in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of ids: the largest plus one.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Text of `ids`; `skip_special`: special tokens have none.
    pub fn text(&self, ids: &[u32], skip_special: bool) -> String {
        self.inner.decode(ids, skip_special).unwrap_or_default()
    }

    /// A view that decodes with or without special tokens.
    pub fn decoder(&self, skip_special: bool) -> TextOf<'_> {
        TextOf { tokenizer: self, skip_special }
    }

    /// The bytes that one token stands for, which may be no whole characters.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.inner.id_to_token(id) else { return Vec::new() };
        let special = self.inner.get_added_vocabulary().simple_id_to_token(id).is_some();
        if let (Some(alphabet), false) = (&self.bytes, special) {
            let bytes: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
            return bytes.unwrap_or_else(|| token.into_bytes());
        }
        if let Some(byte) = byte_token(&token) {
            return vec![byte];
        }
        if special {
            return token.into_bytes();
        }
        // Sentencepiece writes a space as U+2581; its decoder drops the first one, which is part of this token.
        match self.inner.get_decoder() {
            Some(_) if token.contains('\u{2581}') => token.replace('\u{2581}', " ").into_bytes(),
            Some(decoder) => decoder.decode(vec![token.clone()]).unwrap_or(token).into_bytes(),
            None => token.into_bytes(),
        }
    }
}

/// See [`ModelTokenizer::decoder`].
#[derive(Debug, Clone, Copy)]
pub struct TextOf<'a> {
    tokenizer: &'a ModelTokenizer,
    skip_special: bool,
}

impl Decode for TextOf<'_> {
    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.text(ids, self.skip_special)
    }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

/// `<0x0A>`, as vocabularies with byte fallback name a byte.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=u8::MAX)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                let stand_in = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
                next += 1;
                (stand_in, byte)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::domain::detokenize::Detokenizer;
    use proptest::prelude::*;

    /// A byte-level vocabulary without merges: 256 bytes, then one special token.
    fn bytes() -> ModelTokenizer {
        let mut vocabulary = serde_json::Map::new();
        for (c, byte) in byte_alphabet() {
            vocabulary.insert(c.to_string(), byte.into());
        }
        let level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let special = serde_json::json!([{"id": 256, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]);
        let json = serde_json::json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": special,
            "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}});
        ModelTokenizer::parse(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_tokens_bytes_are_those_it_stands_for() {
        let tokenizer = bytes();
        assert_eq!(tokenizer.token_bytes(0xe9), [0xe9]);
        assert_eq!(tokenizer.token_bytes(b' '.into()), b" ");
        assert_eq!(tokenizer.token_bytes(256), b"<|end|>");
        assert_eq!(tokenizer.token_bytes(999), b"");
        assert_eq!(byte_token("<0x0A>"), Some(b'\n'));
    }

    #[test]
    fn garbage_is_no_tokenizer() {
        assert!(ModelTokenizer::parse(b"{}").is_err());
        assert!(ModelTokenizer::parse(b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn text_survives_tokens_one_by_one(text in "\\PC{0,30}", garbage in prop::collection::vec(0_u32..257, 0..30)) {
            let tokenizer = bytes();
            let mut ids = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(tokenizer.text(&ids, true), text);
            ids.extend(garbage);
            let decoder = tokenizer.decoder(true);
            let mut detokenizer = Detokenizer::new();
            let mut shown: String = ids.iter().map(|id| detokenizer.push(*id, &decoder)).collect();
            shown.push_str(&detokenizer.finish(&decoder));
            prop_assert_eq!(shown, tokenizer.text(&ids, true));
        }
    }
}
