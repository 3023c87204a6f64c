//! From the tokens of one choice to what its client is shown.

use super::detokenize::{Decode, Detokenizer};
use super::stop::{Passed, StopStrings};

/// A generated token with what was asked about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Natural log of its probability, when asked for.
    pub logprob: Option<f32>,
    /// Most likely tokens with their natural logs, best first.
    pub top: Vec<(u32, f32)>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context length.
    Length,
}

impl Finish {
    /// OpenAI's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What is new in one choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// Index of the choice.
    pub choice: u32,
    /// Whole characters.
    pub text: String,
    /// Tokens that came; their text may come with a later delta.
    pub tokens: Vec<Token>,
    /// On the last delta of the choice.
    pub finish: Option<Finish>,
}

/// The text of one choice as it grows.
#[derive(Debug, Clone)]
pub struct ChoiceText {
    choice: u32,
    detokenizer: Detokenizer,
    stops: StopStrings,
    silent: Vec<u32>,
    tokens: u32,
    finished: bool,
}

impl ChoiceText {
    /// A choice without tokens. A token of `silent` has no text when the worker ends the choice with it.
    pub fn new(choice: u32, detokenizer: Detokenizer, stop: &[String], silent: Vec<u32>) -> Self {
        Self { choice, detokenizer, stops: StopStrings::new(stop), silent, tokens: 0, finished: false }
    }

    /// Tokens so far, that which ended the choice included.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Whether the choice has ended.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Takes tokens, and `finish` when the worker ended the choice with the last of them.
    pub fn push(&mut self, tokens: Vec<Token>, finish: Option<Finish>, decoder: &impl Decode) -> Delta {
        let mut delta = Delta { choice: self.choice, text: String::new(), tokens: Vec::new(), finish };
        let count = tokens.len();
        for (i, token) in tokens.into_iter().enumerate() {
            let ends = i + 1 == count && finish == Some(Finish::Stop) && self.silent.contains(&token.id);
            let piece = if ends { String::new() } else { self.detokenizer.push(token.id, decoder) };
            self.tokens += 1;
            delta.tokens.push(token);
            if self.show(&piece, &mut delta.text) {
                delta.finish = Some(Finish::Stop);
                self.finished = true;
                return delta;
            }
        }
        if finish.is_some() {
            self.finished = true;
            let rest = self.detokenizer.finish(decoder);
            if self.show(&rest, &mut delta.text) {
                delta.finish = Some(Finish::Stop);
            } else {
                delta.text.push_str(&self.stops.finish());
            }
        }
        delta
    }

    /// True when a stop string ended the text.
    fn show(&mut self, piece: &str, shown: &mut String) -> bool {
        if piece.is_empty() {
            return false;
        }
        let (text, stopped) = match self.stops.push(piece) {
            Passed::Text(text) => (text, false),
            Passed::Stopped(text) => (text, true),
        };
        shown.push_str(&text);
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ascii;

    impl Decode for Ascii {
        fn decode(&self, ids: &[u32]) -> String {
            ids.iter().filter_map(|id| char::from_u32(*id)).collect()
        }
    }

    fn tokens(text: &str) -> Vec<Token> {
        text.chars().map(|c| Token { id: c.into(), logprob: None, top: Vec::new() }).collect()
    }

    fn choice(stop: &[&str]) -> ChoiceText {
        let stop: Vec<String> = stop.iter().map(|s| (*s).to_owned()).collect();
        ChoiceText::new(0, Detokenizer::new(), &stop, vec!['$'.into()])
    }

    #[test]
    fn an_end_token_counts_and_has_no_text() {
        let mut choice = choice(&[]);
        let delta = choice.push(tokens("ab$"), Some(Finish::Stop), &Ascii);
        assert_eq!((delta.text.as_str(), delta.finish), ("ab", Some(Finish::Stop)));
        assert_eq!(choice.tokens(), 3);
    }

    #[test]
    fn the_same_token_elsewhere_has_text() {
        let mut choice = choice(&[]);
        assert_eq!(choice.push(tokens("a$b$"), Some(Finish::Length), &Ascii).text, "a$b$");
    }

    #[test]
    fn a_stop_string_ends_the_choice_and_later_tokens_do_not_count() {
        let mut choice = choice(&["END"]);
        assert_eq!(choice.push(tokens("xE"), None, &Ascii).text, "x");
        let delta = choice.push(tokens("NDyz"), None, &Ascii);
        assert_eq!((delta.text.as_str(), delta.finish), ("", Some(Finish::Stop)));
        assert_eq!(choice.tokens(), 4);
        assert!(choice.finished());
    }

    #[test]
    fn what_was_held_back_comes_with_the_end() {
        let mut choice = choice(&["END"]);
        assert_eq!(choice.push(tokens("xEN"), None, &Ascii).text, "x");
        assert_eq!(choice.push(Vec::new(), Some(Finish::Length), &Ascii).text, "EN");
    }
}
