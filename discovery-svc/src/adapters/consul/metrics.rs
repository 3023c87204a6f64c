//! The instruments of the Consul backend.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    operation: &'static str,
    kind: &'static str,
}

/// `armature_discovery_consul_*`. Operations are those of the adapter, kinds those of its error: both fixed.
#[derive(Clone, Debug, Default)]
pub struct ConsulMetrics {
    calls: Family<OperationLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    /// 1 while Consul is away.
    pub unreachable: Gauge,
    /// Times that Consul came back.
    pub reconnects: Counter,
    /// Instances whose entries in Consul are not yet as they should be.
    pub unsynced: Gauge,
    /// Entries under our names that cannot be read, counted at each reading.
    pub foreign: Counter,
}

impl ConsulMetrics {
    /// Registers the instruments; `registry` carries the service's prefix.
    pub fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("consul");
        let it = Self::default();
        registry.register("calls", "Calls to Consul, by operation", it.calls.clone());
        registry.register("errors", "Calls that failed: away, tls, denied, refused", it.errors.clone());
        registry.register("unreachable", "1 while Consul does not answer", it.unreachable.clone());
        registry.register("reconnects", "Times that Consul was reached again", it.reconnects.clone());
        registry.register("unsynced", "Instances that wait to be written", it.unsynced.clone());
        registry.register(
            "foreign_entries",
            "Entries that could not be read, at each reading",
            it.foreign.clone(),
        );
        it
    }

    pub(super) fn called(&self, operation: &'static str, error: Option<&'static str>) {
        self.calls.get_or_create(&OperationLabels { operation }).inc();
        if let Some(kind) = error {
            self.errors.get_or_create(&ErrorLabels { operation, kind }).inc();
        }
    }

    /// Calls of an operation so far.
    pub fn calls(&self, operation: &'static str) -> u64 {
        self.calls.get_or_create(&OperationLabels { operation }).get()
    }
}
