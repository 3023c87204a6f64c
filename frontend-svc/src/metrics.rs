//! Instruments of the frontend. Label sets are bounded: endpoints and status classes are fixed, model names are capped.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use crate::session::answer::Summary;

/// Model names with series of their own; later ones share the name "other".
const MODELS: usize = 100;
/// Bounds of the time to the first token, in seconds.
const TTFT: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
/// Bounds of the time between tokens, in seconds.
const ITL: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0, 10.0];

/// Label of per-model series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelLabel {
    model: String,
}

/// Labels of the count of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    endpoint: &'static str,
    status: &'static str,
}

/// Every instrument; clones are the same instruments.
#[derive(Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    in_flight: Gauge,
    ttft: Family<ModelLabel, Histogram>,
    itl: Family<ModelLabel, Histogram>,
    prompt_tokens: Family<ModelLabel, Counter>,
    output_tokens: Family<ModelLabel, Counter>,
    cached_tokens: Family<ModelLabel, Counter>,
    migrations: Family<ModelLabel, Counter>,
    /// Refusals after which another worker was asked.
    pub retries: Counter,
    /// Requests that waited for somebody to be READY.
    pub held: Counter,
    /// Clients that went away before the end.
    pub disconnects: Counter,
    /// Streams that ended with an error.
    pub broken_streams: Counter,
    /// Open HTTP connections.
    pub http_connections: Gauge,
    /// Requests refused for the deaths of workers.
    pub refused_fingerprints: Counter,
    /// Requests that a router other than the first had to answer.
    pub router_failovers: Counter,
    /// Releases dropped because too many were waiting.
    pub releases_dropped: Counter,
    /// Ends of choices dropped because too many were waiting.
    pub choice_ends_dropped: Counter,
    models: Arc<Mutex<HashSet<String>>>,
}

impl Metrics {
    /// Registers the instruments; `registry` carries the service's prefix.
    pub fn new(registry: &mut Registry) -> Self {
        let it = Self {
            requests: Family::default(),
            in_flight: Gauge::default(),
            ttft: Family::new_with_constructor(|| Histogram::new(TTFT)),
            itl: Family::new_with_constructor(|| Histogram::new(ITL)),
            prompt_tokens: Family::default(),
            output_tokens: Family::default(),
            cached_tokens: Family::default(),
            migrations: Family::default(),
            retries: Counter::default(),
            held: Counter::default(),
            disconnects: Counter::default(),
            broken_streams: Counter::default(),
            http_connections: Gauge::default(),
            refused_fingerprints: Counter::default(),
            router_failovers: Counter::default(),
            releases_dropped: Counter::default(),
            choice_ends_dropped: Counter::default(),
            models: Arc::default(),
        };
        let seconds = Unit::Seconds;
        registry.register("requests", "Requests by endpoint and class of status", it.requests.clone());
        registry.register("in_flight", "Generations in flight", it.in_flight.clone());
        let ttft = "Time from a request to its first token";
        registry.register_with_unit("time_to_first_token", ttft, seconds.clone(), it.ttft.clone());
        registry.register_with_unit("inter_token_latency", "Time between tokens", seconds, it.itl.clone());
        registry.register("prompt_tokens", "Tokens of prompts", it.prompt_tokens.clone());
        registry.register("output_tokens", "Tokens generated", it.output_tokens.clone());
        let cached = "Tokens of prompts that a worker found in a cache";
        registry.register("cached_tokens", cached, it.cached_tokens.clone());
        registry.register("migrations", "Moves of running requests", it.migrations.clone());
        let retries = "Refusals after which another worker was asked";
        registry.register("retries", retries, it.retries.clone());
        registry.register("held", "Requests that waited for somebody to be READY", it.held.clone());
        registry.register("disconnects", "Clients that went away early", it.disconnects.clone());
        registry.register("broken_streams", "Streams that ended with an error", it.broken_streams.clone());
        registry.register("http_connections", "Open HTTP connections", it.http_connections.clone());
        let refused = "Requests refused because workers died with equal ones";
        registry.register("refused_fingerprints", refused, it.refused_fingerprints.clone());
        let failovers = "Routers that did not answer, so that another was asked";
        registry.register("router_failovers", failovers, it.router_failovers.clone());
        registry.register("releases_dropped", "Releases dropped at the bound", it.releases_dropped.clone());
        let ends = "Ends of choices not told to their worker, at the bound";
        registry.register("choice_ends_dropped", ends, it.choice_ends_dropped.clone());
        it
    }

    /// A request to `endpoint` was answered with `status`.
    pub fn answered(&self, endpoint: &'static str, status: u16) {
        let status = match status {
            0..400 => "2xx",
            429 => "429",
            400..500 => "4xx",
            503 => "503",
            _ => "5xx",
        };
        self.requests.get_or_create(&RequestLabels { endpoint, status }).inc();
    }

    /// Counts a generation as long as the guard lives.
    pub fn running(&self) -> Running {
        self.in_flight.inc();
        Running(self.in_flight.clone())
    }

    /// The pace of a request that arrived at `now`.
    pub fn pace(&self, model: &str, prompt_tokens: u32, now: Instant) -> Pace {
        let label = self.model(model);
        self.prompt_tokens.get_or_create(&label).inc_by(prompt_tokens.into());
        Pace {
            ttft: self.ttft.get_or_create_owned(&label),
            itl: self.itl.get_or_create_owned(&label),
            output: self.output_tokens.get_or_create_owned(&label),
            cached: self.cached_tokens.get_or_create_owned(&label),
            migrations: self.migrations.get_or_create_owned(&label),
            last: now,
            begun: false,
        }
    }

    fn model(&self, name: &str) -> ModelLabel {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let own = models.contains(name) || (models.len() < MODELS && models.insert(name.to_owned()));
        ModelLabel { model: if own { name } else { "other" }.to_owned() }
    }
}

/// One generation in flight.
#[derive(Debug)]
pub struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// When a request's tokens came.
pub struct Pace {
    ttft: Histogram,
    itl: Histogram,
    output: Counter,
    cached: Counter,
    migrations: Counter,
    last: Instant,
    begun: bool,
}

impl Pace {
    /// `count` tokens came at `now`.
    pub fn tokens(&mut self, count: usize, now: Instant) {
        if count == 0 {
            return;
        }
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        if self.begun {
            self.itl.observe(passed / count as f64);
        } else {
            self.ttft.observe(passed);
            self.begun = true;
        }
        self.last = now;
        self.output.inc_by(count as u64);
    }

    /// Whether a token has come.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// The request is over.
    pub fn finished(&self, summary: &Summary) {
        self.cached.inc_by(summary.phases.reused().into());
        self.migrations.inc_by(summary.migrations.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_names_are_capped() {
        let metrics = Metrics::new(&mut Registry::default());
        let names: HashSet<String> = (0..1000).map(|i| metrics.model(&format!("m{i}")).model).collect();
        assert_eq!(names.len(), MODELS + 1);
        assert!(names.contains("other"));
    }
}
