//! One choice on its way: what the engine sends, held against what was asked for.

use std::sync::Arc;

use super::chunk::Finish;
use crate::domain::request::FinishReason;
use crate::domain::sampled::Sampled;

/// What the client is told of the choice.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// A token.
    Token {
        /// Its index among the choice's tokens, those of earlier workers included.
        position: u32,
        /// The token.
        sampled: Sampled,
        /// Set when the choice ends with it.
        finish: Option<FinishReason>,
    },
    /// The choice ended without a token.
    Ended(FinishReason),
}

/// The engine ended it in a way that is no end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the engine ended the answer with finish_reason {0:?}")]
pub struct Aborted(pub String);

/// The state of one choice.
#[derive(Debug)]
pub struct Progress {
    position: u32,
    max_tokens: u32,
    min_tokens: u32,
    stop: Arc<[u32]>,
    last: u32,
    ended: bool,
}

impl Progress {
    /// A choice with `generated` tokens of earlier workers. `stop`: tokens that end it from `min_tokens` on; `max_tokens` counts all.
    pub fn new(generated: &[u32], stop: Arc<[u32]>, min_tokens: u32, max_tokens: u32) -> Self {
        let position = u32::try_from(generated.len()).unwrap_or(u32::MAX);
        let last = generated.last().copied().unwrap_or_default();
        Self { position, max_tokens, min_tokens, stop, last, ended: false }
    }

    /// Whether nothing more is wanted.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Takes what an event said. Tokens beyond the most that were asked for, or behind a stop token, are not told.
    ///
    /// # Errors
    /// [`Aborted`].
    pub fn take(&mut self, tokens: Vec<Sampled>, finish: Option<Finish>) -> Result<Vec<Told>, Aborted> {
        let mut told = Vec::with_capacity(tokens.len() + 1);
        let count = tokens.len();
        for (at, sampled) in tokens.into_iter().enumerate() {
            if self.ended {
                break;
            }
            let position = self.position;
            self.position += 1;
            self.last = sampled.token;
            let last_of_engine = finish.as_ref().filter(|_| at + 1 == count);
            let finish = self.finish_with(sampled.token, last_of_engine);
            self.ended = finish.is_some();
            told.push(Told::Token { position, sampled, finish });
        }
        match finish {
            Some(Finish::Other(reason)) if !self.ended => return Err(Aborted(reason)),
            Some(Finish::Stop) if !self.ended => told.push(Told::Ended(FinishReason::Stop(self.last))),
            Some(Finish::Length) if !self.ended => told.push(Told::Ended(FinishReason::Length)),
            _ => return Ok(told),
        }
        self.ended = true;
        Ok(told)
    }

    fn finish_with(&self, token: u32, engine: Option<&Finish>) -> Option<FinishReason> {
        // At position min_tokens - 1 there are min_tokens tokens.
        if self.stop.contains(&token) && self.position >= self.min_tokens {
            return Some(FinishReason::Stop(token));
        }
        match engine {
            Some(Finish::Stop) => Some(FinishReason::Stop(token)),
            Some(Finish::Length) => Some(FinishReason::Length),
            _ => (self.position >= self.max_tokens).then_some(FinishReason::Length),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sampled(token: u32) -> Sampled {
        Sampled { token, logprob: 0.0, top: Vec::new() }
    }

    fn tokens(ids: &[u32]) -> Vec<Sampled> {
        ids.iter().copied().map(sampled).collect()
    }

    fn progress(generated: &[u32], max: u32) -> Progress {
        Progress::new(generated, Arc::from([2]), 0, max)
    }

    fn told(position: u32, token: u32, finish: Option<FinishReason>) -> Told {
        Told::Token { position, sampled: sampled(token), finish }
    }

    #[test]
    fn positions_go_on_behind_what_earlier_workers_generated() {
        let mut it = progress(&[8, 9], 9);
        assert_eq!(it.take(tokens(&[5, 6]), None).unwrap(), [told(2, 5, None), told(3, 6, None)]);
        let end = [told(4, 7, Some(FinishReason::Stop(7)))];
        assert_eq!(it.take(tokens(&[7]), Some(Finish::Stop)).unwrap(), end);
        assert!(it.ended());
    }

    #[test]
    fn an_engine_that_sends_too_much_is_cut_off_at_what_was_asked_for() {
        let mut it = progress(&[], 2);
        let end = [told(0, 5, None), told(1, 6, Some(FinishReason::Length))];
        assert_eq!(it.take(tokens(&[5, 6, 7, 8]), None).unwrap(), end);
        assert_eq!(it.take(tokens(&[9]), Some(Finish::Stop)).unwrap(), []);
    }

    #[test]
    fn a_stop_token_ends_the_choice_whatever_the_engine_thinks_of_it() {
        let mut it = progress(&[], 9);
        let end = [told(0, 5, None), told(1, 2, Some(FinishReason::Stop(2)))];
        assert_eq!(it.take(tokens(&[5, 2, 7]), None).unwrap(), end);
        let mut late = Progress::new(&[], Arc::from([2]), 2, 9);
        let end = [told(0, 2, None), told(1, 2, Some(FinishReason::Stop(2)))];
        assert_eq!(late.take(tokens(&[2, 2]), None).unwrap(), end, "not before min_tokens");
    }

    #[test]
    fn an_end_without_a_token_is_told_once() {
        let mut it = progress(&[4], 9);
        assert_eq!(it.take(vec![], Some(Finish::Stop)).unwrap(), [Told::Ended(FinishReason::Stop(4))]);
        assert_eq!(it.take(vec![], Some(Finish::Length)).unwrap(), []);
        let mut aborted = progress(&[], 9);
        let error = aborted.take(tokens(&[5]), Some(Finish::Other("abort".into()))).unwrap_err();
        assert_eq!(error, Aborted("abort".into()));
    }
}
