//! Text of an engine that does not tell token ids, as tokens whose text is exactly that.
//!
//! The ids need not be those that the engine sampled: the same text can be cut in several ways. Their text is the same, whoever decodes them
//! in order, and that is checked before they are told.

/// Text to tokens and back.
pub trait Vocabulary: Send + Sync {
    /// Tokens of `text`, without any that a tokenizer adds at its ends.
    fn encode(&self, text: &str) -> Vec<u32>;
    /// Text of `ids`, special tokens included.
    fn decode(&self, ids: &[u32]) -> String;
}

/// The vocabulary has no tokens for a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no tokens of this tokenizer have the engine's text {0:?}: is it the model's own?")]
pub struct Untokenizable(String);

/// Tokens whose text is looked at together with that of the next ones: decoders treat the begin of a text otherwise than its middle.
const CONTEXT: usize = 8;
/// Keeps the begin of a text from being taken for the begin of a sentence.
const GUARD: &str = "\n";

/// One stream of text.
#[derive(Debug, Default)]
pub struct Retokenizer {
    last: Vec<u32>,
}

impl Retokenizer {
    /// Begins behind tokens that are there already.
    pub fn after(tokens: &[u32]) -> Self {
        Self { last: tokens[tokens.len().saturating_sub(CONTEXT)..].to_vec() }
    }

    /// The tokens of the next piece.
    ///
    /// # Errors
    /// [`Untokenizable`].
    pub fn push(&mut self, text: &str, vocabulary: &dyn Vocabulary) -> Result<Vec<u32>, Untokenizable> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let before = vocabulary.decode(&self.last);
        let behind = |prefix: &str, known: &[u32]| {
            vocabulary.encode(&format!("{prefix}{text}")).strip_prefix(known).map(<[u32]>::to_vec)
        };
        let guard = vocabulary.encode(GUARD);
        let candidates = [Some(vocabulary.encode(text)), behind(GUARD, &guard), behind(&before, &self.last)];
        let wanted = format!("{before}{text}");
        let fits = |ids: &Vec<u32>| vocabulary.decode(&[&self.last[..], ids].concat()) == wanted;
        let ids = candidates.into_iter().flatten().find(fits);
        let ids = ids.ok_or_else(|| Untokenizable(text.to_owned()))?;
        self.last.extend_from_slice(&ids);
        self.last.drain(..self.last.len().saturating_sub(CONTEXT));
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// A vocabulary of bytes: token `b` is byte `b`.
    struct Bytes;

    impl Vocabulary for Bytes {
        fn encode(&self, text: &str) -> Vec<u32> {
            text.bytes().map(u32::from).collect()
        }
        fn decode(&self, ids: &[u32]) -> String {
            let bytes: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    /// Letters and a space before each text, which decoding drops again: as sentencepiece does it.
    struct Sentence;

    impl Vocabulary for Sentence {
        fn encode(&self, text: &str) -> Vec<u32> {
            std::iter::once(u32::from(' ')).chain(text.chars().map(u32::from)).collect()
        }
        fn decode(&self, ids: &[u32]) -> String {
            let text: String = ids.iter().filter_map(|id| char::from_u32(*id)).collect();
            text.strip_prefix(' ').unwrap_or(&text).to_owned()
        }
    }

    /// Knows no digits.
    struct Letters;

    impl Vocabulary for Letters {
        fn encode(&self, text: &str) -> Vec<u32> {
            text.chars().filter(|c| !c.is_ascii_digit()).map(u32::from).collect()
        }
        fn decode(&self, ids: &[u32]) -> String {
            ids.iter().filter_map(|id| char::from_u32(*id)).collect()
        }
    }

    fn pieces() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-z é漢🦀\n]{0,6}", 0..10)
    }

    proptest! {
        #[test]
        fn the_tokens_have_the_engines_text_however_it_was_cut(pieces in pieces()) {
            for vocabulary in [&Bytes as &dyn Vocabulary, &Sentence] {
                let mut retokenizer = Retokenizer::default();
                let mut ids = Vec::new();
                for piece in &pieces {
                    ids.extend(retokenizer.push(piece, vocabulary).unwrap());
                }
                prop_assert_eq!(vocabulary.decode(&ids), pieces.concat());
            }
        }
    }

    #[test]
    fn a_text_without_tokens_is_refused() {
        let mut retokenizer = Retokenizer::after(&[97, 98]);
        let refused = retokenizer.push("7", &Letters).unwrap_err();
        assert!(refused.to_string().contains("\"7\""), "{refused}");
    }
}
