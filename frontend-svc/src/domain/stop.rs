//! Stop strings over text that comes in pieces.
//!
//! One Knuth-Morris-Pratt automaton per stop string: its state is the length of the longest prefix of the stop string that the text seen so
//! far ends with. So the tail that must be held back, the shortest possible, is the largest state: no shorter tail contains every beginning
//! of a stop string. The stop string whose last byte comes first ends the text; of two that end at the same byte the longer one, so that
//! the result does not depend on how the text was cut into pieces.

/// Looks for stop strings in one choice's text.
#[derive(Debug, Clone)]
pub struct StopStrings {
    automata: Vec<Automaton>,
    held: String,
}

#[derive(Debug, Clone)]
struct Automaton {
    pattern: Box<[u8]>,
    /// `fallback[i]`: longest proper prefix of `pattern[..=i]` that is its suffix.
    fallback: Box<[usize]>,
    state: usize,
}

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passed {
    /// Text that can be shown: no stop string can begin in it.
    Text(String),
    /// The text before a stop string; everything after is not part of the answer.
    Stopped(String),
}

impl StopStrings {
    /// Looks for `stop`; empty strings are never found.
    pub fn new(stop: &[String]) -> Self {
        let automata = stop.iter().filter(|text| !text.is_empty()).map(|text| Automaton::new(text)).collect();
        Self { automata, held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.automata.is_empty() {
            return Passed::Text(piece.to_owned());
        }
        let mut text = std::mem::take(&mut self.held);
        let before = text.len();
        text.push_str(piece);
        for end in before..text.len() {
            let byte = text.as_bytes()[end];
            let found = self.automata.iter_mut().filter_map(|automaton| automaton.step(byte)).max();
            if let Some(length) = found {
                text.truncate(end + 1 - length);
                return Passed::Stopped(text);
            }
        }
        // A beginning of a stop string begins with a whole character, so this never splits one.
        let hold = self.automata.iter().map(|automaton| automaton.state).max().unwrap_or(0);
        self.held = text.split_off(text.len() - hold);
        Passed::Text(text)
    }

    /// The text ended without a stop string: what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

impl Automaton {
    fn new(text: &str) -> Self {
        let pattern: Box<[u8]> = text.as_bytes().into();
        let mut fallback = vec![0; pattern.len()];
        let mut length = 0;
        for i in 1..pattern.len() {
            while length > 0 && pattern[i] != pattern[length] {
                length = fallback[length - 1];
            }
            length += usize::from(pattern[i] == pattern[length]);
            fallback[i] = length;
        }
        Self { pattern, fallback: fallback.into(), state: 0 }
    }

    /// Takes one byte; the pattern's length when it is complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        while self.state > 0 && self.pattern[self.state] != byte {
            self.state = self.fallback[self.state - 1];
        }
        self.state += usize::from(self.pattern[self.state] == byte);
        (self.state == self.pattern.len()).then_some(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, on the whole text: where the first complete stop string begins.
    fn naive(text: &str, stop: &[String]) -> Option<usize> {
        (1..=text.len()).find_map(|end| {
            let ends = stop.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
            ends.map(|s| end - s.len()).min()
        })
    }

    /// The shortest tail that must be held: the longest end of the text that a stop string begins with.
    fn must_hold(text: &str, stop: &[String]) -> usize {
        (0..text.len())
            .find(|&start| text.is_char_boundary(start) && stop.iter().any(|s| s.starts_with(&text[start..])))
            .map_or(0, |start| text.len() - start)
    }

    #[test]
    fn a_stop_string_over_two_pieces() {
        let mut stops = StopStrings::new(&["END".to_owned()]);
        assert_eq!(stops.push("all is wellE"), Passed::Text("all is well".into()));
        assert_eq!(stops.push("N"), Passed::Text(String::new()));
        assert_eq!(stops.push("D of it"), Passed::Stopped(String::new()));
    }

    #[test]
    fn a_false_beginning_is_shown() {
        let mut stops = StopStrings::new(&["aab".to_owned()]);
        assert_eq!(stops.push("aaa"), Passed::Text("a".into()));
        assert_eq!(stops.finish(), "aa");
    }

    proptest! {
        #[test]
        fn equals_a_search_of_the_whole_text(
            pieces in prop::collection::vec("[abé😀]{0,4}", 0..12),
            stop in prop::collection::vec("[abé😀]{1,4}", 0..4),
        ) {
            let whole = pieces.concat();
            let mut stops = StopStrings::new(&stop);
            let (mut shown, mut seen, mut stopped) = (String::new(), String::new(), false);
            for piece in &pieces {
                seen.push_str(piece);
                match stops.push(piece) {
                    Passed::Text(text) => {
                        shown.push_str(&text);
                        prop_assert_eq!(seen.len() - shown.len(), must_hold(&seen, &stop));
                    }
                    Passed::Stopped(text) => {
                        shown.push_str(&text);
                        stopped = true;
                        break;
                    }
                }
            }
            if !stopped {
                shown.push_str(&stops.finish());
            }
            match naive(&whole, &stop) {
                Some(at) => { prop_assert!(stopped); prop_assert_eq!(shown, &whole[..at]); }
                None => { prop_assert!(!stopped); prop_assert_eq!(shown, whole); }
            }
        }
    }
}
