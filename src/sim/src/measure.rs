//! What is measured while a simulation runs. Three numbers for each request are kept, and a histogram of the times between tokens.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::flight::Flight;
use crate::settings::Slo;
use crate::timeline::{Bucket, Timeline};

/// Longest time between tokens that is told from a longer one, in microseconds: an hour.
const LONGEST_ITL_MICROS: u64 = 3_600_000_000;

/// A distribution of times, in milliseconds. A percentile p is the value at place p (n - 1), rounded down, of n in order.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of values in ascending order.
    fn of(sorted: &[f64]) -> Self {
        let Some(max) = sorted.last() else { return Self::default() };
        let at = |share: f64| sorted[(share * (sorted.len() - 1) as f64) as usize];
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: *max }
    }

    fn of_histogram(micros: &Histogram<u64>) -> Self {
        if micros.is_empty() {
            return Self::default();
        }
        let at = |share| micros.value_at_quantile(share) as f64 / 1e3;
        Self {
            mean: micros.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: micros.max() as f64 / 1e3,
        }
    }
}

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerShare {
    /// Prompt tokens computed: those that no cache had, and those that were computed again.
    pub prefill_tokens: u64,
    /// Tokens computed in decode steps.
    pub decode_tokens: u64,
    /// Passes.
    pub passes: u64,
    /// Share of the time in passes.
    pub busy: f64,
    /// Whether it prefills.
    pub prefills: bool,
}

/// What a worker did, before its share is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerDone {
    pub(crate) prefill_tokens: u64,
    pub(crate) decode_tokens: u64,
    pub(crate) passes: u64,
    pub(crate) busy: Duration,
    pub(crate) prefills: bool,
}

/// What came of a run. The same for the same workload, settings and seed, to the last bit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests that arrived.
    pub requests: u64,
    /// Of those, the ones with a whole answer.
    pub finished: u64,
    /// Those that no worker could take.
    pub refused: u64,
    /// How often a request had to go on elsewhere because its worker was lost.
    pub migrated: u64,
    /// Virtual time from the start to the last answer.
    pub seconds: f64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all answers.
    pub output_tokens: u64,
    /// Prompt tokens of finished requests that were in the cache of the worker that computed the rest, as a share of all.
    pub hit_ratio: f64,
    /// The same for a cache that holds everything for ever.
    pub hit_ceiling: f64,
    /// Time to the first token, milliseconds.
    pub ttft: Spread,
    /// Time between tokens, milliseconds; to three digits.
    pub itl: Spread,
    /// Time to the last token, milliseconds.
    pub e2e: Spread,
    /// Share of requests that arrived whose answer was good: first token and mean time between tokens within the SLO.
    pub good: f64,
    /// Good answers per second.
    pub goodput: f64,
    /// Prefill tokens of the worker that computed most, over the mean of those that prefill.
    pub imbalance: f64,
    /// Each worker.
    pub workers: Vec<WorkerShare>,
    /// Distribution of the time to the first token: points (milliseconds, share of requests).
    pub ttft_curve: Vec<(f64, f64)>,
    /// The same of the time to the last token.
    pub e2e_curve: Vec<(f64, f64)>,
    /// The run in pieces of equal length.
    pub timeline: Vec<Bucket>,
}

/// Points of a curve: as many as a plot can show.
const CURVE_POINTS: usize = 160;

#[derive(Debug)]
pub(crate) struct Measure {
    slo: Slo,
    arrived: u64,
    refused: u64,
    migrated: u64,
    prompt_tokens: u64,
    ceiling_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    good: u64,
    ttft: Vec<f64>,
    e2e: Vec<f64>,
    itl: Histogram<u64>,
    timeline: Timeline,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Measure {
    pub(crate) fn new(slo: Slo) -> Self {
        Self {
            slo,
            arrived: 0,
            refused: 0,
            migrated: 0,
            prompt_tokens: 0,
            ceiling_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            good: 0,
            ttft: Vec::new(),
            e2e: Vec::new(),
            itl: Histogram::new_with_bounds(1, LONGEST_ITL_MICROS, 3).expect("the bounds are in order"),
            timeline: Timeline::default(),
        }
    }

    pub(crate) fn arrived(&mut self, now: Duration, prompt_tokens: u64, seen_tokens: u64) {
        self.arrived += 1;
        self.prompt_tokens += prompt_tokens;
        self.ceiling_tokens += seen_tokens;
        self.timeline.at(now).arrivals += 1;
    }

    pub(crate) fn refused(&mut self) {
        self.refused += 1;
    }

    pub(crate) fn migrated(&mut self) {
        self.migrated += 1;
    }

    pub(crate) fn first_token(&mut self, arrived: Duration, now: Duration) {
        let ttft = milliseconds(now - arrived);
        self.ttft.push(ttft);
        let bucket = self.timeline.at(arrived);
        bucket.first_tokens += 1;
        bucket.ttft_sum_ms += ttft;
        bucket.ttft_max_ms = bucket.ttft_max_ms.max(ttft);
    }

    pub(crate) fn next_token(&mut self, after: Duration) {
        self.itl.saturating_record(after.as_micros().try_into().unwrap_or(u64::MAX));
    }

    pub(crate) fn finished(&mut self, flight: &Flight) {
        self.e2e.push(milliseconds(flight.last_at - flight.arrived));
        self.cached_tokens += flight.cached;
        self.output_tokens += u64::from(flight.generated);
        let bucket = self.timeline.at(flight.arrived);
        bucket.prompt_tokens += flight.prompt.len() as u64;
        bucket.cached_tokens += flight.cached;
        let gaps = flight.generated.saturating_sub(1).max(1);
        let mean_itl = (flight.last_at - flight.first_at) / gaps;
        let good = flight.first_at - flight.arrived <= self.slo.ttft && mean_itl <= self.slo.itl;
        self.good += u64::from(good);
    }

    pub(crate) fn outcome(&self, workers: Vec<WorkerDone>, now: Duration) -> Outcome {
        let sorted = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            values
        };
        let (ttft, e2e) = (sorted(&self.ttft), sorted(&self.e2e));
        let seconds = now.as_secs_f64();
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        let prefill: Vec<u64> =
            workers.iter().filter(|worker| worker.prefills).map(|worker| worker.prefill_tokens).collect();
        let most = prefill.iter().max().copied().unwrap_or(0);
        Outcome {
            requests: self.arrived,
            finished: self.e2e.len() as u64,
            refused: self.refused,
            migrated: self.migrated,
            seconds,
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            hit_ratio: share(self.cached_tokens, self.prompt_tokens),
            hit_ceiling: share(self.ceiling_tokens, self.prompt_tokens),
            ttft: Spread::of(&ttft),
            itl: Spread::of_histogram(&self.itl),
            e2e: Spread::of(&e2e),
            good: share(self.good, self.arrived),
            goodput: if seconds > 0.0 { self.good as f64 / seconds } else { 0.0 },
            imbalance: share(most * prefill.len() as u64, prefill.iter().sum()),
            workers: workers
                .iter()
                .map(|worker| WorkerShare {
                    prefill_tokens: worker.prefill_tokens,
                    decode_tokens: worker.decode_tokens,
                    passes: worker.passes,
                    busy: if seconds > 0.0 { worker.busy.as_secs_f64() / seconds } else { 0.0 },
                    prefills: worker.prefills,
                })
                .collect(),
            ttft_curve: curve(&ttft),
            e2e_curve: curve(&e2e),
            timeline: self.timeline.buckets(),
        }
    }
}

/// Points at even shares, the last hundredth finer: that is where curves differ.
fn curve(sorted: &[f64]) -> Vec<(f64, f64)> {
    let tail = CURVE_POINTS / 4;
    let body = (0..CURVE_POINTS - tail).map(|point| 0.99 * point as f64 / (CURVE_POINTS - tail) as f64);
    let tail = (0..=tail).map(|point| 0.99 + 0.01 * point as f64 / tail as f64);
    let at = |share: f64| {
        let rank = ((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
        (sorted[rank - 1], share)
    };
    if sorted.is_empty() { Vec::new() } else { body.chain(tail).map(at).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_values_at_their_places() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let spread = Spread::of(&values);
        assert_eq!(
            (spread.mean, spread.p50, spread.p90, spread.p99, spread.max),
            (100.5, 100.0, 180.0, 198.0, 200.0)
        );
        assert_eq!(Spread::of(&[7.0]).p99, 7.0);
        assert_eq!(Spread::of(&[]), Spread::default());
        let curve = curve(&values);
        assert!(curve.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1));
        assert_eq!(curve.last(), Some(&(200.0, 1.0)));
    }
}
