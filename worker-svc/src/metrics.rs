//! The worker's instruments: `armature_worker_*`.

use std::sync::Arc;

use armature_svc_kit::server::ServerMetrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use crate::domain::request::Refusal;
use crate::ports::Backend;
use crate::transfer::{Chosen, TransportKind};

/// How a hand-off ended, at the decode worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum HandoffEnd {
    /// The KV landed and is committed.
    Committed,
    /// The request ended first.
    Unwanted,
    /// The prefill worker took it and failed.
    Broken,
    /// The prefill worker did not take it.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    end: HandoffEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Counters of this worker. Every label has a fixed, small set of values.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Generate calls taken.
    pub requests: Counter,
    /// Prefill calls taken.
    pub prefills: Counter,
    /// Clients that went away before their last token.
    pub disconnects: Counter,
    /// Incarnations that were announced gone while this process lived.
    pub fenced: Counter,
    refused: Family<ReasonLabel, Counter>,
    handoffs: Family<EndLabel, Counter>,
    transports: Family<TransportLabel, Counter>,
    shm_fallbacks: Counter,
    landed_tokens: Counter,
    landed_bytes: Counter,
    /// Of the gRPC server.
    pub server: ServerMetrics,
}

impl Metrics {
    /// Registers the instruments; `registry` carries the prefix.
    pub fn new(registry: &mut Registry) -> Self {
        let it = Self { server: ServerMetrics::new(registry), ..Self::default() };
        registry.register("requests", "Generate calls taken", it.requests.clone());
        registry.register("prefills", "Prefill calls taken", it.prefills.clone());
        registry.register("disconnects", "Clients gone before their last token", it.disconnects.clone());
        registry.register("fenced", "Incarnations announced gone in this process's life", it.fenced.clone());
        registry.register("refused", "Calls refused, by reason", it.refused.clone());
        registry.register("handoffs", "Hand-offs led, by their end", it.handoffs.clone());
        registry.register("handoff_transports", "Hand-offs by transport", it.transports.clone());
        registry.register(
            "shm_fallbacks",
            "Hand-offs that shared memory could not serve",
            it.shm_fallbacks.clone(),
        );
        registry.register("landed_tokens", "Tokens whose KV landed here", it.landed_tokens.clone());
        registry.register_with_unit("landed", "KV landed here", Unit::Bytes, it.landed_bytes.clone());
        it
    }

    /// Counts a refused call.
    pub fn refused(&self, refusal: &Refusal) {
        let reason = match refusal {
            Refusal::QueueFull { .. } => "queue_full",
            Refusal::Draining => "draining",
            Refusal::PrefillBackpressure { .. } => "prefill_backpressure",
            Refusal::EngineAway => "engine_away",
            Refusal::Unsupported(_) => "unsupported",
            Refusal::Fenced => "fenced",
            Refusal::Duplicate => "duplicate",
            Refusal::ContextExceeded { .. } => "context_exceeded",
            Refusal::TooManyChoices { .. } => "too_many_choices",
            Refusal::Invalid(_) => "invalid",
        };
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Counts a hand-off's end.
    pub fn handoff(&self, end: HandoffEnd) {
        self.handoffs.get_or_create(&EndLabel { end }).inc();
    }

    /// Counts a settled transport.
    pub fn transport(&self, chosen: &Chosen) {
        let transport = match chosen.transport {
            TransportKind::Tcp => "tcp",
            TransportKind::Shm => "shm",
        };
        self.transports.get_or_create(&TransportLabel { transport }).inc();
        if chosen.shm_refused.is_some() {
            self.shm_fallbacks.inc();
        }
    }

    /// Counts landed KV.
    pub fn landed(&self, tokens: usize, token_bytes: usize) {
        self.landed_tokens.inc_by(tokens as u64);
        self.landed_bytes.inc_by((tokens * token_bytes) as u64);
    }
}

/// What the engine's side knows, read when the metrics are.
#[derive(Debug)]
pub struct EngineState(pub Arc<dyn Backend>);

impl Collector for EngineState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let report = self.0.report(None);
        let counters = self.0.counters();
        let gauges = [
            ("running", "Sequences admitted", report.running as i64),
            ("waiting", "Requests waiting", report.waiting as i64),
            (
                "uncomputed_prefill_tokens",
                "Prompt tokens still to compute",
                report.uncomputed_prefill_tokens as i64,
            ),
            ("kv_blocks_active", "KV blocks held by requests", report.blocks_active as i64),
            ("kv_blocks_cached", "KV blocks of the prefix cache", report.blocks_cached as i64),
            ("kv_blocks_free", "KV blocks with nothing in them", report.blocks_free as i64),
            ("kv_blocks_quarantined", "KV blocks of broken transfers", report.blocks_quarantined as i64),
            ("kv_blocks_promised", "KV blocks promised and not allocated", report.blocks_promised as i64),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            ("engine_tokens", "Tokens whose KV the engine computed", counters.engine_tokens),
            ("prompt_tokens_computed", "Prompt tokens computed", counters.prompt_tokens_computed),
            ("tokens_generated", "Tokens generated", counters.tokens_generated),
            ("steps", "Forward passes", counters.steps),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

/// What is published to Redis. Reasons are names of refusals and of failed connections: a fixed list.
#[derive(Debug, Clone, Default)]
pub struct RedisMetrics {
    /// 1 while it holds everything up to the last batch or is about to.
    pub connected: Gauge,
    /// Batches written.
    pub batches: Counter,
    /// Snapshots written.
    pub snapshots: Counter,
    behind: Gauge,
    failures: Family<ReasonLabel, Counter>,
}

impl RedisMetrics {
    /// Registers the instruments; `registry` carries the prefix.
    pub fn new(registry: &mut Registry) -> Self {
        let it = Self::default();
        registry.register("redis_connected", "Whether KV events reach Redis", it.connected.clone());
        registry.register("redis_batches", "Batches of KV events written to Redis", it.batches.clone());
        registry.register(
            "redis_snapshots",
            "Snapshots of the blocks written to Redis",
            it.snapshots.clone(),
        );
        registry.register("redis_behind_batches", "Batches that are not in Redis yet", it.behind.clone());
        registry.register("redis_failures", "Failed writes and connections, by reason", it.failures.clone());
        it
    }

    /// Shows how many batches are not there yet.
    pub fn behind(&self, batches: u64) {
        self.behind.set(i64::try_from(batches).unwrap_or(i64::MAX));
    }

    /// Counts a failure.
    pub fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&ReasonLabel { reason }).inc();
    }
}
