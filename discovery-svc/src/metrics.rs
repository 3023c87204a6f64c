//! The instruments of the service.

use armature_svc_kit::server::ServerMetrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::config::Settings;
use crate::domain::instance::{Component, Status};
use crate::domain::registry;
use crate::domain::store::Usage;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InstanceLabels {
    component: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ComponentLabels {
    component: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabels {
    limit: &'static str,
}

/// `armature_discovery_*`. Labels are bounded: components, statuses, results and limits are fixed sets.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Of the gRPC server.
    pub server: ServerMetrics,
    instances: Family<InstanceLabels, Gauge>,
    leases: Gauge,
    /// Watch streams.
    pub watchers: Gauge,
    /// Watchers that were too slow and got a snapshot.
    pub resyncs: Counter,
    mass_loss: Family<ComponentLabels, Gauge>,
    recovering: Gauge,
    revision: Gauge,
    registrations: Family<ResultLabels, Counter>,
    verdicts: Family<ResultLabels, Counter>,
    tombstones: Gauge,
    tombstones_dropped: Gauge,
    leaders: Gauge,
    instance_bytes: Gauge,
    card_bytes: Gauge,
    artifact_bytes: Gauge,
    /// Failed loads of the file backend's file.
    pub file_errors: Counter,
}

impl Metrics {
    /// Registers the instruments in `registry`, under the service's prefix.
    pub fn new(registry: &mut Registry, settings: &Settings) -> Self {
        let registry = registry.sub_registry_with_prefix("armature_discovery");
        let it = Self {
            server: ServerMetrics::new(registry),
            instances: Family::default(),
            leases: Gauge::default(),
            watchers: Gauge::default(),
            resyncs: Counter::default(),
            mass_loss: Family::default(),
            recovering: Gauge::default(),
            revision: Gauge::default(),
            registrations: Family::default(),
            verdicts: Family::default(),
            tombstones: Gauge::default(),
            tombstones_dropped: Gauge::default(),
            leaders: Gauge::default(),
            instance_bytes: Gauge::default(),
            card_bytes: Gauge::default(),
            artifact_bytes: Gauge::default(),
            file_errors: Counter::default(),
        };
        registry.register("instances", "Instances as they are shown", it.instances.clone());
        registry.register("leases", "Leases this replica keeps", it.leases.clone());
        registry.register("watchers", "Watch streams", it.watchers.clone());
        registry.register("resyncs", "Slow watchers that got a snapshot", it.resyncs.clone());
        registry.register("mass_loss", "1 while a mass loss is held back", it.mass_loss.clone());
        registry.register("recovering", "1 while no losses are reported", it.recovering.clone());
        registry.register("revision", "Revision of the view", it.revision.clone());
        registry.register("registrations", "Registrations by result", it.registrations.clone());
        registry.register("verdicts", "Leases judged, by result", it.verdicts.clone());
        registry.register("tombstones", "Fenced ids", it.tombstones.clone());
        registry.register("tombstones_dropped", "Fenced ids dropped early", it.tombstones_dropped.clone());
        registry.register("leaders", "Names with a leader", it.leaders.clone());
        registry.register("instance_bytes", "Bytes of all instances", it.instance_bytes.clone());
        registry.register("card_bytes", "Bytes of all cards", it.card_bytes.clone());
        registry.register("artifact_bytes", "Bytes of all artifacts", it.artifact_bytes.clone());
        registry.register("file_errors", "Failed loads of the instance file", it.file_errors.clone());
        let limits = Family::<LimitLabels, Gauge>::default();
        registry.register("limit", "Every bound, by its key in the configuration", limits.clone());
        for (limit, value) in [
            ("instances", settings.limits.instances),
            ("instance_bytes", settings.limits.instance_bytes),
            ("tombstones", settings.limits.tombstones),
            ("leaders", settings.limits.leaders),
            ("watchers", settings.watchers),
            ("deltas", settings.rules.ring),
            ("changes", settings.changes),
            ("card_bytes", settings.limits.card_bytes),
            ("artifact_bytes", settings.limits.artifact_bytes),
            ("calls", settings.server.max_in_flight),
            ("connections", settings.server.max_connections),
        ] {
            limits.get_or_create(&LimitLabels { limit }).set(signed(value));
        }
        it
    }

    /// A registration ended.
    pub fn registered(&self, result: &'static str) {
        self.registrations.get_or_create(&ResultLabels { result }).inc();
    }

    /// A lease was judged.
    pub fn judged(&self, result: &'static str) {
        self.verdicts.get_or_create(&ResultLabels { result }).inc();
    }

    /// Shows the state of the registry and of its backend.
    pub fn observe(&self, registry: &registry::Registry, usage: Usage) {
        let mut counts = [[0usize; Status::ALL.len()]; Component::ALL.len()];
        for instance in registry.view().instances() {
            counts[instance.component as usize][instance.status as usize] += 1;
        }
        let mut alarm = [0; Component::ALL.len()];
        for group in registry.alarms() {
            alarm[group.component as usize] = 1;
        }
        for component in Component::ALL {
            for status in Status::ALL {
                let labels = InstanceLabels { component: component.as_str(), status: status.as_str() };
                let count = counts[component as usize][status as usize];
                self.instances.get_or_create(&labels).set(signed(count));
            }
            let labels = ComponentLabels { component: component.as_str() };
            self.mass_loss.get_or_create(&labels).set(alarm[component as usize]);
        }
        self.leases.set(signed(registry.leases().len()));
        self.recovering.set(i64::from(registry.recovering()));
        self.revision.set(i64::try_from(registry.view().revision().0).unwrap_or(i64::MAX));
        self.tombstones.set(signed(usage.tombstones));
        self.tombstones_dropped.set(i64::try_from(usage.tombstones_dropped).unwrap_or(i64::MAX));
        self.leaders.set(signed(usage.leaders));
        self.instance_bytes.set(signed(usage.instance_bytes));
        self.card_bytes.set(signed(usage.card_bytes));
        self.artifact_bytes.set(signed(usage.artifact_bytes));
    }
}

fn signed(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
