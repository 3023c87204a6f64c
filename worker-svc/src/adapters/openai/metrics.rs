//! Instruments of an adapter.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhatLabel {
    what: &'static str,
}

/// What is seen of the engine. Labels are names in this file: a fixed list.
#[derive(Debug, Clone, Default)]
pub struct EngineMetrics {
    /// 1 while it answers.
    pub(super) up: Gauge,
    /// Requests of others in it, by its own numbers.
    pub(super) foreign: Gauge,
    /// Times that it went away.
    pub(super) losses: Counter,
    failures: Family<WhatLabel, Counter>,
    disagreements: Family<WhatLabel, Counter>,
}

impl EngineMetrics {
    /// Registers the instruments; `registry` carries the prefix.
    pub fn new(registry: &mut Registry) -> Self {
        let it = Self::default();
        registry.register("engine_up", "Whether the engine behind this worker answers", it.up.clone());
        registry.register(
            "engine_foreign_requests",
            "Requests in the engine that did not come from this worker",
            it.foreign.clone(),
        );
        registry.register("engine_losses", "Times that the engine stopped answering", it.losses.clone());
        registry.register("engine_failures", "Requests that the engine failed, by how", it.failures.clone());
        registry.register(
            "engine_disagreements",
            "Answers whose token counts by the engine are not those seen here",
            it.disagreements.clone(),
        );
        it
    }

    /// Counts a failed request.
    pub(super) fn failed(&self, what: &'static str) {
        self.failures.get_or_create(&WhatLabel { what }).inc();
    }

    /// Counts an answer that the engine counts otherwise.
    pub(super) fn disagrees(&self, what: &'static str) {
        self.disagreements.get_or_create(&WhatLabel { what }).inc();
    }
}
