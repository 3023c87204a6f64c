//! The router's instruments. Label values come from fixed lists, so their number is bounded.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::domain::backlog;
use crate::domain::router::Totals;

/// Policy and way of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    /// Name of the policy.
    pub policy: &'static str,
    /// Where the prompt is computed: "local" or "remote".
    pub prefill: &'static str,
}

/// A reason from a fixed list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// Which.
    pub reason: &'static str,
}

/// A stream from a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StreamLabel {
    /// "state" or "kv".
    pub stream: &'static str,
}

/// All instruments; clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Decisions by policy.
    pub decisions: Family<DecisionLabels, Counter>,
    /// Refused calls of Route by reason.
    pub refusals: Family<ReasonLabel, Counter>,
    /// Full prompt blocks of decided requests.
    pub prompt_blocks: Counter,
    /// Of those, blocks that the worker which computes the prompt was believed to have.
    pub hit_blocks: Counter,
    /// Time of a call of Route that did not wait for room.
    pub route_seconds: Histogram,
    /// Streams opened again.
    pub feed_reconnects: Family<StreamLabel, Counter>,
    /// Doubts about a worker's blocks.
    pub doubts: Family<ReasonLabel, Counter>,
    /// Snapshots taken.
    pub snapshots: Counter,
    /// Decisions recorded.
    pub recorded: Counter,
    /// Decisions for which the recorder had no room.
    pub unrecorded: Counter,
    /// Legs of reservations that no worker named in time.
    pub unnamed: Counter,
    /// Requests that wait.
    pub backlog: BacklogMetrics,
    gauges: Gauges,
}

#[derive(Clone, Debug, Default)]
struct Gauges {
    workers: Gauge,
    unknown: Gauge,
    entries: Gauge,
    index_bytes: Gauge,
    forgotten: Gauge,
    predicted: Gauge,
    approximate: Gauge,
    open: Gauge,
    remembered: Gauge,
    decision_bytes: Gauge,
}

impl Metrics {
    /// Registers the instruments under the prefix `armature_router`.
    pub fn new(registry: &mut Registry) -> Self {
        // 10 us .. 0.3 s: a decision takes tens of microseconds, a busy lock or a snapshot milliseconds.
        let route_seconds = Histogram::new(exponential_buckets(1e-5, 2.0, 16));
        let it = Self {
            decisions: Family::default(),
            refusals: Family::default(),
            prompt_blocks: Counter::default(),
            hit_blocks: Counter::default(),
            route_seconds,
            feed_reconnects: Family::default(),
            doubts: Family::default(),
            snapshots: Counter::default(),
            recorded: Counter::default(),
            unrecorded: Counter::default(),
            unnamed: Counter::default(),
            backlog: BacklogMetrics::new(),
            gauges: Gauges::default(),
        };
        let registry = registry.sub_registry_with_prefix("armature_router");
        it.backlog.register(registry);
        registry.register("decisions", "Decisions by policy and place of the prefill", it.decisions.clone());
        registry.register("refusals", "Refused requests by reason", it.refusals.clone());
        registry.register(
            "prompt_blocks",
            "Full prompt blocks of decided requests",
            it.prompt_blocks.clone(),
        );
        registry.register(
            "hit_blocks",
            "Prompt blocks the computing worker was believed to have",
            it.hit_blocks.clone(),
        );
        registry.register_with_unit(
            "route",
            "Time of a call of Route that did not wait",
            Unit::Seconds,
            it.route_seconds.clone(),
        );
        registry.register("feed_reconnects", "Worker streams opened again", it.feed_reconnects.clone());
        registry.register("index_doubts", "Doubts about a worker's blocks", it.doubts.clone());
        registry.register("index_snapshots", "Snapshots taken of a worker's blocks", it.snapshots.clone());
        registry.register(
            "unnamed_legs",
            "Reservation legs that no worker named in time",
            it.unnamed.clone(),
        );
        registry.register("decisions_recorded", "Decisions recorded", it.recorded.clone());
        registry.register(
            "decisions_unrecorded",
            "Decisions for which the recorder had no room",
            it.unrecorded.clone(),
        );
        let gauges = &it.gauges;
        registry.register("workers", "Worker ranks in the view", gauges.workers.clone());
        registry.register(
            "index_unknown_ranks",
            "Worker ranks whose blocks are not known",
            gauges.unknown.clone(),
        );
        registry.register("index_entries", "Blocks in the index", gauges.entries.clone());
        registry.register(
            "index_bytes",
            "Bytes of the index; 0 where it does not count them",
            gauges.index_bytes.clone(),
        );
        registry.register(
            "index_forgotten_blocks",
            "Blocks forgotten since the start",
            gauges.forgotten.clone(),
        );
        registry.register(
            "index_predicted_entries",
            "Blocks expected of routed requests",
            gauges.predicted.clone(),
        );
        registry.register(
            "index_approximate_entries",
            "Blocks that workers without KV events are believed to have",
            gauges.approximate.clone(),
        );
        registry.register("reservations_open", "Unsettled reservations", gauges.open.clone());
        registry.register(
            "reservations_remembered",
            "Ended reservations remembered",
            gauges.remembered.clone(),
        );
        registry.register("decision_bytes", "Bytes kept to explain decisions", gauges.decision_bytes.clone());
        it
    }

    /// Registers the bounds, so that a dashboard can show how near they are.
    pub fn bounds(registry: &mut Registry, bounds: [(&'static str, usize); 8]) {
        let registry = registry.sub_registry_with_prefix("armature_router");
        for (name, bound) in bounds {
            let gauge = Gauge::<i64>::default();
            gauge.set(whole(bound));
            registry.register(name, "Configured bound", gauge);
        }
    }

    /// Shows the gauges of the state.
    pub fn show(&self, totals: Totals) {
        let gauges = &self.gauges;
        gauges.workers.set(whole(totals.workers));
        gauges.unknown.set(whole(totals.unknown));
        gauges.entries.set(i64::try_from(totals.index.entries).unwrap_or(i64::MAX));
        gauges.index_bytes.set(whole(totals.index.bytes.unwrap_or(0)));
        gauges.forgotten.set(i64::try_from(totals.index.forgotten).unwrap_or(i64::MAX));
        gauges.predicted.set(whole(totals.predicted));
        gauges.approximate.set(whole(totals.approximate));
        gauges.open.set(whole(totals.open));
        gauges.remembered.set(whole(totals.remembered));
        gauges.decision_bytes.set(whole(totals.decision_bytes));
    }
}

/// Requests that wait for room. Reasons are from a fixed list.
#[derive(Clone, Debug)]
pub struct BacklogMetrics {
    /// How long requests waited, whatever became of them.
    pub waited: Histogram,
    /// Requests that did not wait, or no longer, by reason.
    pub refusals: Family<ReasonLabel, Counter>,
    /// Requests whose callers went away.
    pub cancelled: Counter,
    requests: Gauge,
    calls: Gauge,
    bytes: Gauge,
    tenants: Gauge,
}

impl BacklogMetrics {
    fn new() -> Self {
        Self {
            // 1 ms .. 131 s: from one report of a worker to longer than requests usually may wait.
            waited: Histogram::new(exponential_buckets(1e-3, 2.0, 18)),
            refusals: Family::default(),
            cancelled: Counter::default(),
            requests: Gauge::default(),
            calls: Gauge::default(),
            bytes: Gauge::default(),
            tenants: Gauge::default(),
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "backlog_waited",
            "Time that requests waited for room, whatever became of them",
            Unit::Seconds,
            self.waited.clone(),
        );
        registry.register(
            "backlog_refusals",
            "Requests that did not wait for room, or no longer, by reason",
            self.refusals.clone(),
        );
        registry.register(
            "backlog_cancelled",
            "Waiting requests whose callers went away",
            self.cancelled.clone(),
        );
        registry.register("backlog_requests", "Requests that wait for room", self.requests.clone());
        registry.register("backlog_calls", "Calls that wait for these requests", self.calls.clone());
        registry.register("backlog_bytes", "Bytes of requests that wait for room", self.bytes.clone());
        registry.register(
            "backlog_tenants",
            "Tenants that wait for room, or are remembered for what they were given",
            self.tenants.clone(),
        );
    }

    /// Shows the gauges.
    pub fn show(&self, waiting: backlog::Totals) {
        self.requests.set(whole(waiting.requests));
        self.calls.set(whole(waiting.calls));
        self.bytes.set(whole(waiting.bytes));
        self.tenants.set(whole(waiting.tenants));
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What is read from Redis. Reasons are from fixed lists.
#[derive(Clone, Debug)]
pub struct RedisMetrics {
    /// Whether it answers.
    pub connected: Gauge,
    /// Snapshots taken.
    pub snapshots: Counter,
    /// Times a worker was asked directly, by what was wrong.
    pub remedies: Family<ReasonLabel, Counter>,
    /// Failed connections and reads.
    pub failures: Family<ReasonLabel, Counter>,
    batches: Counter,
    age: Histogram,
    ranks: Gauge,
    asked: Gauge,
}

impl RedisMetrics {
    /// Registers the instruments under the prefix `armature_router`.
    pub fn new(registry: &mut Registry) -> Self {
        let it = Self {
            connected: Gauge::default(),
            snapshots: Counter::default(),
            remedies: Family::default(),
            failures: Family::default(),
            batches: Counter::default(),
            // 1 ms .. 8 s: what is older is caught by its worker's word after two.
            age: Histogram::new(exponential_buckets(1e-3, 2.0, 14)),
            ranks: Gauge::default(),
            asked: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("armature_router");
        registry.register("redis_connected", "Whether Redis answers", it.connected.clone());
        registry.register("redis_batches", "Batches of KV events read from Redis", it.batches.clone());
        registry.register("redis_snapshots", "Snapshots of blocks read from Redis", it.snapshots.clone());
        registry.register(
            "redis_remedies",
            "Workers asked for their KV events themselves, by what was wrong with Redis",
            it.remedies.clone(),
        );
        registry.register("redis_failures", "Failed connections and reads, by reason", it.failures.clone());
        registry.register_with_unit(
            "redis_event_age",
            "Age of a batch when it is applied, by the clocks of both hosts",
            Unit::Seconds,
            it.age.clone(),
        );
        registry.register("redis_ranks", "Worker ranks whose KV events are wanted", it.ranks.clone());
        registry.register("redis_asked_ranks", "Of those, asked themselves", it.asked.clone());
        it
    }

    /// Counts a batch that is applied.
    pub fn applied(&self, age: std::time::Duration) {
        self.batches.inc();
        self.age.observe(age.as_secs_f64());
    }

    /// How many ranks are asked themselves.
    pub fn asked_ranks(&self) -> i64 {
        self.asked.get()
    }

    /// Shows how many ranks there are, and how many are asked themselves.
    pub fn ranks(&self, all: usize, asked: usize) {
        self.ranks.set(whole(all));
        self.asked.set(whole(asked));
    }
}
