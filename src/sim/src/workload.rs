//! Made-up workloads: sessions of several turns that share the beginnings of their prompts, and start in bursts.
//!
//! A turn's prompt is the session's prefix, every earlier turn with its answer, and the turn's own text. Turns come at times that do not
//! depend on the answers: a person who does not wait. All lengths and times are drawn from the seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::draw::Draws;
use crate::request::{Piece, Prompt, SimRequest, Text};

/// What is made up. Lengths are means: each is drawn evenly from half to one and a half of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Requests in all.
    pub requests: u64,
    /// Sessions that start per second, in the mean; above 0.
    pub rate: f64,
    /// Sessions that start together.
    pub burst: u32,
    /// Different prefixes; a session has one of them. 0: no session shares anything.
    pub prefixes: u64,
    /// Tokens of a prefix, exactly.
    pub prefix_tokens: u32,
    /// Turns of a session, at least 1.
    pub turns: u32,
    /// Mean time from a turn to the next; exponential.
    pub think: Duration,
    /// Tokens of a turn's own text.
    pub input_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            requests: 10_000,
            rate: 2.0,
            burst: 1,
            prefixes: 20,
            prefix_tokens: 2048,
            turns: 4,
            think: Duration::from_secs(20),
            input_tokens: 1024,
            output_tokens: 256,
        }
    }
}

/// A workload that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {problem}")]
pub struct InvalidWorkload {
    setting: &'static str,
    problem: &'static str,
}

/// A turn that will come.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    at: Duration,
    /// Orders turns of one time.
    session: u64,
    turn: u32,
    history: Vec<(u64, u32)>,
}

/// The requests of a workload, in order. As many sessions are in memory as have turns left.
#[derive(Debug)]
pub struct Sessions {
    workload: Workload,
    draws: Draws,
    turns: BinaryHeap<Reverse<Turn>>,
    next_start: Duration,
    sessions: u64,
    texts: u64,
    made: u64,
}

impl Workload {
    /// Its requests, drawn from a seed.
    ///
    /// # Errors
    /// The first setting out of range.
    pub fn requests(&self, seed: u64) -> Result<Sessions, InvalidWorkload> {
        let invalid = |setting, problem| Err(InvalidWorkload { setting, problem });
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return invalid("rate", "not above 0");
        }
        let counts = [
            ("requests", self.requests),
            ("burst", self.burst.into()),
            ("turns", self.turns.into()),
            ("input_tokens", self.input_tokens.into()),
            ("output_tokens", self.output_tokens.into()),
        ];
        if let Some((setting, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return invalid(setting, "0");
        }
        Ok(Sessions {
            workload: self.clone(),
            draws: Draws::new(seed),
            turns: BinaryHeap::new(),
            next_start: Duration::ZERO,
            sessions: 0,
            texts: self.prefixes,
            made: 0,
        })
    }
}

impl Sessions {
    fn length(&mut self, mean: u32) -> u32 {
        (f64::from(mean) * (0.5 + self.draws.unit())).round().max(1.0) as u32
    }

    fn text(&mut self) -> u64 {
        self.texts += 1;
        self.texts
    }

    /// Starts what starts before the next turn.
    fn start_sessions(&mut self) {
        while self.turns.peek().is_none_or(|Reverse(turn)| turn.at >= self.next_start) {
            let at = self.next_start;
            for _ in 0..self.workload.burst {
                self.sessions += 1;
                let mut history = Vec::new();
                if self.workload.prefixes > 0 && self.workload.prefix_tokens > 0 {
                    history.push((self.draws.below(self.workload.prefixes), self.workload.prefix_tokens));
                }
                self.turns.push(Reverse(Turn { at, session: self.sessions, turn: 1, history }));
            }
            let mean = Duration::from_secs_f64(f64::from(self.workload.burst) / self.workload.rate);
            self.next_start += self.draws.exponential(mean);
        }
    }
}

impl Iterator for Sessions {
    type Item = SimRequest;

    fn next(&mut self) -> Option<SimRequest> {
        if self.made == self.workload.requests {
            return None;
        }
        self.made += 1;
        self.start_sessions();
        let Reverse(Turn { at, session, turn, mut history }) = self.turns.pop()?;
        let (text, answer) = (self.text(), self.text());
        history.push((text, self.length(self.workload.input_tokens)));
        let output = self.length(self.workload.output_tokens);
        let pieces = history.iter().map(|(text, tokens)| Piece { text: Text(*text), tokens: *tokens });
        let prompt = Prompt(pieces.collect());
        if turn < self.workload.turns {
            history.push((answer, output));
            let next = at + self.draws.exponential(self.workload.think);
            self.turns.push(Reverse(Turn { at: next, session, turn: turn + 1, history }));
        }
        Some(SimRequest { at, prompt, answer: Text(answer), output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_repeat_what_was_said_and_come_in_order() {
        let workload = Workload { requests: 200, burst: 3, ..Workload::default() };
        let made: Vec<_> = workload.requests(5).unwrap().collect();
        assert_eq!(made, workload.requests(5).unwrap().collect::<Vec<_>>());
        assert_ne!(made, workload.requests(6).unwrap().collect::<Vec<_>>());
        assert_eq!(made.len(), 200);
        assert!(made.is_sorted_by_key(|request| request.at));
        assert!(made[..3].iter().all(|request| request.at.is_zero()), "a burst comes at once");
        let repeats = |later: &SimRequest, earlier: &SimRequest| {
            let answer = Piece { text: earlier.answer, tokens: earlier.output };
            later.prompt.0.starts_with(&earlier.prompt.0)
                && later.prompt.0.get(earlier.prompt.0.len()) == Some(&answer)
        };
        let second = made.iter().filter(|later| made.iter().any(|earlier| repeats(later, earlier))).count();
        assert!(second > 60, "{second} of 200 are later turns");
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let none = Workload { turns: 0, ..Workload::default() };
        assert_eq!(none.requests(1).unwrap_err().to_string(), "turns is 0");
        let never = Workload { rate: f64::NAN, ..Workload::default() };
        assert_eq!(never.requests(1).unwrap_err().to_string(), "rate is not above 0");
    }
}
