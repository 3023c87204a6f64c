//! When requests come: faster than recorded, and spread out where time stamps are coarse.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::draw::Draws;
use crate::request::SimRequest;

/// Changes arrival times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// How many times faster than recorded; above 0.
    pub speed: f64,
    /// Each arrival is late by up to this much of recorded time, drawn evenly.
    pub jitter: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { speed: 1.0, jitter: Duration::ZERO }
    }
}

struct Waiting {
    request: SimRequest,
    number: u64,
}

impl Waiting {
    fn key(&self) -> (Duration, u64) {
        (self.request.at, self.number)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Requests at another pace, in the order of their new times. As many are in memory as come within the jitter.
pub struct Paced<I> {
    requests: I,
    pace: Pace,
    draws: Draws,
    waiting: BinaryHeap<Reverse<Waiting>>,
    number: u64,
    /// Recorded time of the last one taken; nothing earlier will come. `None` at the end.
    taken_to: Option<Duration>,
}

impl Pace {
    /// `requests`, which are in order, at this pace.
    pub fn of<I>(self, requests: I, seed: u64) -> Paced<I> {
        Paced {
            requests,
            pace: self,
            draws: Draws::new(seed),
            waiting: BinaryHeap::new(),
            number: 0,
            taken_to: Some(Duration::ZERO),
        }
    }
}

impl<E, I: Iterator<Item = Result<SimRequest, E>>> Iterator for Paced<I> {
    type Item = Result<SimRequest, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(Reverse(first)) = self.waiting.peek()
                && self.taken_to.is_none_or(|to| first.request.at <= to)
            {
                let Reverse(Waiting { mut request, .. }) = self.waiting.pop()?;
                request.at = request.at.div_f64(self.pace.speed);
                return Some(Ok(request));
            }
            self.taken_to?;
            match self.requests.next() {
                None => self.taken_to = None,
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(mut request)) => {
                    self.taken_to = Some(request.at);
                    self.number += 1;
                    request.at += self.pace.jitter.mul_f64(self.draws.unit());
                    self.waiting.push(Reverse(Waiting { request, number: self.number }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Piece, Prompt, Text};

    fn arrivals(pace: Pace) -> Vec<Duration> {
        let request = |n: u64| SimRequest {
            at: Duration::from_secs(n / 10 * 3),
            prompt: Prompt(vec![Piece { text: Text(n), tokens: 1 }]),
            answer: Text(n),
            output: 1,
        };
        let requests = (0..100).map(request).map(Ok::<_, ()>);
        pace.of(requests, 1).map(|request| request.unwrap().at).collect()
    }

    #[test]
    fn speed_divides_and_jitter_spreads_in_order() {
        let twice = arrivals(Pace { speed: 2.0, ..Pace::default() });
        assert_eq!(
            (twice[9], twice[10], twice[99]),
            (Duration::ZERO, Duration::from_millis(1500), Duration::from_millis(13_500))
        );
        let spread = arrivals(Pace { jitter: Duration::from_secs(3), ..Pace::default() });
        assert_eq!(spread.len(), 100);
        assert!(spread.is_sorted() && spread[9] > spread[0]);
        assert!(spread[99] <= Duration::from_secs(30));
    }
}
