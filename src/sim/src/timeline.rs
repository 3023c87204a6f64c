//! A run in pieces of equal length, bounded in number: when there are too many, two become one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most pieces: a plot shows no more.
const MAX_BUCKETS: usize = 240;
/// Length of the first pieces.
const FIRST_LENGTH: Duration = Duration::from_millis(250);

/// A piece of a run, by when requests arrived.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Bucket {
    /// Seconds from the start to its beginning.
    pub from_seconds: f64,
    /// Requests that arrived.
    pub arrivals: u64,
    /// Of those, how many have had their first token.
    pub first_tokens: u64,
    /// Sum of their times to it, milliseconds.
    pub ttft_sum_ms: f64,
    /// The longest.
    pub ttft_max_ms: f64,
    /// Prompt tokens of those that finished.
    pub prompt_tokens: u64,
    /// Of those, in a cache.
    pub cached_tokens: u64,
}

impl Bucket {
    fn add(&mut self, other: &Self) {
        self.arrivals += other.arrivals;
        self.first_tokens += other.first_tokens;
        self.ttft_sum_ms += other.ttft_sum_ms;
        self.ttft_max_ms = self.ttft_max_ms.max(other.ttft_max_ms);
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
    }
}

#[derive(Debug)]
pub(crate) struct Timeline {
    length: Duration,
    buckets: Vec<Bucket>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { length: FIRST_LENGTH, buckets: Vec::new() }
    }
}

impl Timeline {
    /// The piece of a time.
    pub(crate) fn at(&mut self, time: Duration) -> &mut Bucket {
        let mut index = self.index(time);
        while index >= MAX_BUCKETS {
            self.coarsen();
            index = self.index(time);
        }
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, Bucket::default());
        }
        &mut self.buckets[index]
    }

    fn index(&self, time: Duration) -> usize {
        (time.as_nanos() / self.length.as_nanos()) as usize
    }

    fn coarsen(&mut self) {
        self.length *= 2;
        let merged = self.buckets.chunks(2).map(|pair| {
            let mut sum = pair[0];
            pair.iter().skip(1).for_each(|second| sum.add(second));
            sum
        });
        self.buckets = merged.collect();
    }

    pub(crate) fn buckets(&self) -> Vec<Bucket> {
        let from = |index: usize| self.length.as_secs_f64() * index as f64;
        let named = |(index, bucket): (usize, &Bucket)| Bucket { from_seconds: from(index), ..*bucket };
        self.buckets.iter().enumerate().map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_bounded_and_loses_nothing() {
        let mut timeline = Timeline::default();
        for second in 0..10_000 {
            timeline.at(Duration::from_secs(second)).arrivals += 1;
        }
        let buckets = timeline.buckets();
        assert!(buckets.len() <= MAX_BUCKETS);
        assert_eq!(buckets.iter().map(|bucket| bucket.arrivals).sum::<u64>(), 10_000);
        // 64 s each: 0.25 * 2^8 are the first that hold 10,000 s in 240 pieces.
        assert_eq!((buckets[1].from_seconds, buckets[1].arrivals), (64.0, 64));
    }
}
