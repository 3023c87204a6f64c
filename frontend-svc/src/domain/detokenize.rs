//! Text of tokens that come one by one.
//!
//! A token can end inside a character, and some decoders look at neighbours (a leading space, runs of byte tokens), so the text of a token
//! is only known together with others. A window of tokens is decoded again with each new one: those whose text was shown last, as context,
//! and those behind. What is new against the text shown already is shown, except for a tail of replacement characters, which may be the
//! beginning of a character. The window is at most [`MAX_WINDOW`] tokens, so that a token costs a bounded time.

/// Turns token ids into text. What the window sees of a tokenizer.
pub trait Decode {
    /// The text of `ids`, with U+FFFD for what is no UTF-8. Ids that are not in the vocabulary have no text.
    fn decode(&self, ids: &[u32]) -> String;
}

/// Tokens kept at most; more than that without a complete character is not text, and is shown as it is.
pub const MAX_WINDOW: usize = 64;
/// Longest beginning of a character that is not one yet: a character has at most 4 bytes, and a decoder may show each as U+FFFD.
const MAX_HELD: usize = 3;

/// The text of one choice so far.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    window: Vec<u32>,
    /// Tokens of `window` that are only context.
    context: usize,
    /// Bytes of the window's text that were shown.
    shown: usize,
}

impl Detokenizer {
    /// A choice without text so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// A choice whose text goes on directly behind `tail`, the last tokens of the prompt: decoders that drop a leading space keep it.
    pub fn after(tail: &[u32], decoder: &impl Decode) -> Self {
        let text = decoder.decode(tail);
        if text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Self::new();
        }
        Self { window: tail.to_vec(), context: tail.len(), shown: text.len() }
    }

    /// Takes the next token; the text that is now complete, perhaps none.
    pub fn push(&mut self, token: u32, decoder: &impl Decode) -> String {
        self.window.push(token);
        let text = decoder.decode(&self.window);
        let end = if self.window.len() > MAX_WINDOW { text.len() } else { complete(&text) };
        // Nothing is new, or the decoder took back what was shown, which no client can be told.
        let new = text.get(self.shown..end).unwrap_or_default().to_owned();
        if self.window.len() > MAX_WINDOW || (end == text.len() && !new.is_empty()) {
            self.slide(decoder);
        } else if end > self.shown {
            self.shown = end;
        }
        new
    }

    /// No more tokens: what was held back.
    pub fn finish(&mut self, decoder: &impl Decode) -> String {
        let text = decoder.decode(&self.window);
        let rest = text.get(self.shown..).unwrap_or_default().to_owned();
        *self = Self::new();
        rest
    }

    /// Everything is shown: the tokens that were new become the context.
    fn slide(&mut self, decoder: &impl Decode) {
        self.window.drain(..self.context);
        if self.window.len() > MAX_WINDOW / 2 {
            self.window.drain(..self.window.len() - MAX_WINDOW / 2);
        }
        self.context = self.window.len();
        self.shown = decoder.decode(&self.window).len();
    }
}

/// Bytes of `text` before a tail that may be the beginning of a character.
fn complete(text: &str) -> usize {
    let held = text.chars().rev().take(MAX_HELD).take_while(|c| *c == char::REPLACEMENT_CHARACTER).count();
    text.len() - held * char::REPLACEMENT_CHARACTER.len_utf8()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Byte-level: token i is a byte string, decoding joins them, as byte-level BPE does. 256 and above are special: no text.
    struct Bytes(Vec<Vec<u8>>);

    impl Decode for Bytes {
        fn decode(&self, ids: &[u32]) -> String {
            let bytes: Vec<u8> =
                ids.iter().filter_map(|id| self.0.get(*id as usize)).flatten().copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    /// Drops the space that the first token begins with, as sentencepiece decoders do.
    struct LeadingSpace(Bytes);

    impl Decode for LeadingSpace {
        fn decode(&self, ids: &[u32]) -> String {
            let text = self.0.decode(ids);
            text.strip_prefix(' ').map_or(text.clone(), str::to_owned)
        }
    }

    fn bytes() -> Bytes {
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        tokens.extend([b" the".to_vec(), "é".into(), vec![0xf0, 0x9f], vec![0x98, 0x80, b'x'], "😀".into()]);
        Bytes(tokens)
    }

    fn run(ids: &[u32], decoder: &impl Decode) -> (Vec<String>, String) {
        let mut text = Detokenizer::new();
        let pieces = ids.iter().map(|id| text.push(*id, decoder)).collect();
        (pieces, text.finish(decoder))
    }

    #[test]
    fn a_character_over_four_tokens_comes_whole() {
        let ids: Vec<u32> = "😀a".bytes().map(u32::from).collect();
        let (pieces, rest) = run(&ids, &bytes());
        assert_eq!(pieces, ["", "", "", "😀", "a"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn an_unfinished_character_comes_at_the_end() {
        let (pieces, rest) = run(&[0xf0, 0x9f], &bytes());
        assert_eq!(pieces.concat(), "");
        assert_eq!(rest, "\u{fffd}");
    }

    #[test]
    fn a_leading_space_is_dropped_once() {
        let ids: Vec<u32> = vec![256, 256, 256];
        let (pieces, _) = run(&ids, &LeadingSpace(bytes()));
        assert_eq!(pieces.concat(), "the the the");
        let mut behind = Detokenizer::after(&[u32::from(b'x')], &LeadingSpace(bytes()));
        assert_eq!(behind.push(256, &LeadingSpace(bytes())), " the");
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_whole(ids in prop::collection::vec(0_u32..270, 0..60)) {
            let decoder = bytes();
            let (pieces, rest) = run(&ids, &decoder);
            prop_assert_eq!(pieces.concat() + &rest, decoder.decode(&ids));
        }

        #[test]
        fn text_is_never_split(text in "\\PC{0,40}") {
            let ids: Vec<u32> = text.bytes().map(u32::from).collect();
            let (pieces, rest) = run(&ids, &bytes());
            for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
                prop_assert!(text.contains(piece.as_str()));
                prop_assert!(text.contains(char::REPLACEMENT_CHARACTER) || !piece.contains(char::REPLACEMENT_CHARACTER));
            }
            prop_assert_eq!(pieces.concat() + &rest, text);
        }

        #[test]
        fn endless_garbage_is_bounded(ids in prop::collection::vec(0x80_u32..=0xff, 200..400)) {
            let decoder = bytes();
            let mut text = Detokenizer::new();
            let mut shown = String::new();
            for id in &ids {
                shown.push_str(&text.push(*id, &decoder));
                prop_assert!(text.window.len() <= MAX_WINDOW + 1);
            }
            shown.push_str(&text.finish(&decoder));
            prop_assert!(shown.len() >= ids.len() / 4);
        }
    }
}
