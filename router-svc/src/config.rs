//! Configuration, as it is written; [`Config::validate`] makes the settings of the parts.

use std::time::Duration;

use armature_kv_redis::KvEventsConfig;
use armature_svc_kit::address::Address;
use armature_svc_kit::secret::Secret;
use armature_svc_kit::telemetry::TelemetryConfig;
use serde::{Deserialize, Serialize};

use crate::domain::backlog;
use crate::domain::index::segmented;
use crate::domain::policy::{PolicyKind, Settings};
use crate::domain::reservations::Bounds;
use crate::domain::units::{Millis, Tokens};

/// Levels of a topology.
const MAX_TOPOLOGY_KEYS: usize = 8;

/// Configuration of a router.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the gRPC service; port 0 is ephemeral.
    pub listen: Address,
    /// Address of the admin HTTP server; none: no admin server.
    pub admin: Option<Address>,
    /// Address to register instead of the bound one, for instance behind a wildcard.
    pub advertise: Option<Address>,
    /// Discovery services, tried in turn.
    pub discovery: Vec<Address>,
    /// Where the last good view of the membership is kept; unset: nowhere.
    pub view_file: Option<std::path::PathBuf>,
    /// Deployment this router belongs to.
    pub namespace: String,
    /// Token shared by the services.
    pub token: Option<Secret>,
    /// Calls in flight before others are refused.
    pub max_in_flight: usize,
    /// Seconds that accepted calls may take after a shutdown was asked for.
    pub drain_seconds: u64,
    /// How workers are scored.
    pub policy: PolicyConfig,
    /// Where workers are.
    pub topology: TopologyConfig,
    /// Prefix index.
    pub index: IndexConfig,
    /// Reservations.
    pub reservations: ReservationConfig,
    /// Requests that wait for room at a worker.
    pub backlog: BacklogConfig,
    /// Kept decisions.
    pub explain: ExplainConfig,
    /// Streams from the workers.
    pub feed: FeedConfig,
    /// How KV events travel from workers.
    pub kv_events: KvEventsConfig,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
}

/// Whether decode workers may prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalPrefill {
    /// When it costs less, or no prefill worker is there.
    Allowed,
    /// Never.
    Forbidden,
    /// They do only while no prefill worker is READY, whatever it costs.
    Fallback,
}

/// How workers are scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// Which policy, by its name.
    #[serde(with = "policy_name")]
    pub name: PolicyKind,
    /// Price of duplicating blocks, in units of computing them.
    pub kappa: f64,
    /// The same in a prefill pool.
    pub kappa_prefill: f64,
    /// Weight of decode time against time to first token.
    pub eta: f64,
    /// Weight of the age of evicted blocks in a prefill pool.
    pub eviction_age: f64,
    /// Price of a millisecond for which a worker's report is overdue.
    pub staleness: f64,
    /// Output tokens of a request that names no expectation.
    pub expected_output_tokens: u32,
    /// Whether decode workers may prefill.
    pub local_prefill: LocalPrefill,
    /// Whether prefill and decode workers of different deployment revisions may work together.
    pub mix_revisions: bool,
    /// Milliseconds by which the choice is softened.
    pub temperature_ms: f64,
}

/// Policies by their names.
mod policy_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::domain::policy::PolicyKind;

    pub(super) fn serialize<S: Serializer>(kind: &PolicyKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PolicyKind, D::Error> {
        let name = String::deserialize(from)?;
        PolicyKind::named(&name).ok_or_else(|| {
            let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            D::Error::custom(format!("{name:?} is none of {}", names.join(", ")))
        })
    }
}

/// Where workers are to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopologyConfig {
    /// Labels, from coarse to fine; at most 8.
    pub keys: Vec<String>,
    /// Share of the transfer time that each step adds.
    pub penalty: f64,
    /// Milliseconds for opening a transfer connection.
    pub cold_transfer_ms: f64,
}

impl Default for TopologyConfig {
    fn default() -> Self {
        Self { keys: vec!["zone".into(), "host".into()], penalty: 0.5, cold_transfer_ms: 2.0 }
    }
}

/// Implementations of the prefix index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexKind {
    /// Bounded by bytes: 13 to 16 per block.
    Segmented,
    /// Hash maps, bounded by blocks: the baseline.
    Map,
}

/// Prefix index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexConfig {
    /// Which implementation.
    pub kind: IndexKind,
    /// Bytes of a segmented index; beyond it the blocks worth least are forgotten.
    pub max_bytes: usize,
    /// Blocks of a map, each worker's counted, beyond which the deepest are forgotten; and blocks of the largest snapshot taken.
    pub max_entries: usize,
    /// Blocks of the prompts expected of routed requests; 0 switches prediction off.
    pub predicted_entries: usize,
    /// Milliseconds for which a prompt is expected.
    pub predicted_ms: u64,
    /// Blocks of the prompts that workers without KV events are believed to have; 0: none.
    pub approximate_entries: usize,
    /// Milliseconds for which they are believed to have a prompt; 0: as long as it would fit their pools.
    pub approximate_ttl_ms: u64,
}

/// Reservations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReservationConfig {
    /// Unsettled ones; more are refused.
    pub max_open: usize,
    /// Ended ones remembered.
    pub max_ended: usize,
    /// Milliseconds until a worker must have named a reservation.
    pub admission_ms: u64,
    /// Milliseconds for which an ended one is remembered.
    pub remember_ms: u64,
}

/// Requests that wait for room at a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BacklogConfig {
    /// Requests that wait at a time, below max_in_flight; 0: workers queue all they take, and what they do not is refused at once.
    pub max_requests: usize,
    /// Bytes of their hash lists and of what else they hold.
    pub max_bytes: usize,
    /// Longest wait of a request, milliseconds; shorter where the request says so.
    pub max_wait_ms: u64,
    /// Waiting so many milliseconds is worth one class of priority.
    pub aging_ms: u64,
    /// Whether tenants take turns by the tokens they were given.
    pub fair: bool,
    /// Milliseconds of work that may be queued at every worker before requests wait here; 0: as much as workers take.
    pub worker_queue_ms: u64,
}

/// Kept decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExplainConfig {
    /// Bytes of inputs kept.
    pub max_bytes: usize,
    /// Where inputs of decisions are recorded; unset: nowhere.
    pub record_dir: Option<std::path::PathBuf>,
    /// Bytes of all recorded files.
    pub record_max_bytes: u64,
}

/// Streams from the workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedConfig {
    /// Least milliseconds between load reports of a worker.
    pub report_interval_ms: u64,
    /// First and longest pause before a broken stream is opened again, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest pause.
    pub backoff_max_ms: u64,
    /// Least milliseconds between two snapshots of one worker rank.
    pub snapshot_interval_ms: u64,
    /// Snapshots taken at a time.
    pub snapshots_at_once: usize,
    /// Milliseconds after which the router serves although workers have not reported.
    pub ready_after_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Address::tcp("127.0.0.1", 7200),
            admin: Some(Address::tcp("127.0.0.1", 7210)),
            advertise: None,
            discovery: vec![Address::tcp("127.0.0.1", 7100)],
            view_file: None,
            namespace: "default".into(),
            token: None,
            max_in_flight: 8192,
            drain_seconds: 30,
            policy: PolicyConfig::default(),
            topology: TopologyConfig::default(),
            index: IndexConfig::default(),
            reservations: ReservationConfig::default(),
            backlog: BacklogConfig::default(),
            explain: ExplainConfig::default(),
            feed: FeedConfig::default(),
            kv_events: KvEventsConfig::default(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            name: PolicyKind::Kv,
            kappa: 2.0,
            kappa_prefill: 1.0,
            eta: 0.05,
            eviction_age: 2.0,
            staleness: 1.0,
            expected_output_tokens: 300,
            local_prefill: LocalPrefill::Allowed,
            mix_revisions: false,
            temperature_ms: 0.0,
        }
    }
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            kind: IndexKind::Segmented,
            max_bytes: 256 * 1024 * 1024,
            max_entries: 8_000_000,
            predicted_entries: 2_097_152,
            predicted_ms: 30_000,
            approximate_entries: 8_388_608,
            approximate_ttl_ms: 0,
        }
    }
}

impl Default for ReservationConfig {
    fn default() -> Self {
        Self { max_open: 65_536, max_ended: 262_144, admission_ms: 10_000, remember_ms: 30_000 }
    }
}

impl Default for BacklogConfig {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            max_bytes: 64 * 1024 * 1024,
            max_wait_ms: 60_000,
            aging_ms: 5_000,
            fair: true,
            worker_queue_ms: 500,
        }
    }
}

impl Default for ExplainConfig {
    fn default() -> Self {
        Self { max_bytes: 64 * 1024 * 1024, record_dir: None, record_max_bytes: 1 << 30 }
    }
}

impl Default for FeedConfig {
    fn default() -> Self {
        Self {
            report_interval_ms: 20,
            backoff_min_ms: 50,
            backoff_max_ms: 2_000,
            snapshot_interval_ms: 1_000,
            snapshots_at_once: 4,
            ready_after_ms: 5_000,
        }
    }
}

/// A setting out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {problem}")]
pub struct Invalid {
    key: &'static str,
    problem: &'static str,
}

/// Configuration in the domain's terms.
#[derive(Debug, Clone, Copy)]
pub struct Valid {
    /// Weights of the cost.
    pub settings: Settings,
    /// Bounds of reservations.
    pub reservations: Bounds,
    /// What may wait, and in which order.
    pub backlog: backlog::Bounds,
    /// What may be queued at workers while nothing waits.
    pub depth: Option<Millis>,
}

impl Config {
    /// Checks what types do not.
    pub fn validate(&self) -> Result<Valid, Invalid> {
        let policy = &self.policy;
        let weights = [
            ("policy.kappa", policy.kappa),
            ("policy.kappa_prefill", policy.kappa_prefill),
            ("policy.eta", policy.eta),
            ("policy.eviction_age", policy.eviction_age),
            ("policy.staleness", policy.staleness),
            ("policy.temperature_ms", policy.temperature_ms),
            ("topology.penalty", self.topology.penalty),
            ("topology.cold_transfer_ms", self.topology.cold_transfer_ms),
        ];
        if let Some((key, _)) = weights.into_iter().find(|(_, weight)| !weight.is_finite() || *weight < 0.0) {
            return Err(Invalid { key, problem: "negative or not a number" });
        }
        let counts = [
            ("max_in_flight", self.max_in_flight),
            ("index.max_entries", self.index.max_entries),
            ("reservations.max_open", self.reservations.max_open),
            ("feed.snapshots_at_once", self.feed.snapshots_at_once),
            ("discovery", self.discovery.len()),
            ("namespace", self.namespace.len()),
            ("backlog.aging_ms", self.backlog.aging_ms as usize),
        ];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Invalid { key, problem: "zero or empty" });
        }
        if self.topology.keys.len() > MAX_TOPOLOGY_KEYS {
            return Err(Invalid { key: "topology.keys", problem: "longer than 8" });
        }
        if self.index.max_bytes < segmented::LEAST_BYTES {
            return Err(Invalid {
                key: "index.max_bytes",
                problem: "below 1048576, what an empty index may take",
            });
        }
        if self.backlog.max_requests >= self.max_in_flight {
            return Err(Invalid {
                key: "backlog.max_requests",
                problem: "not below max_in_flight: requests that wait would leave no call for others",
            });
        }
        if self.feed.backoff_min_ms == 0 || self.feed.backoff_max_ms < self.feed.backoff_min_ms {
            return Err(Invalid { key: "feed.backoff_min_ms", problem: "zero or above feed.backoff_max_ms" });
        }
        Ok(Valid {
            settings: Settings {
                policy: policy.name,
                kappa: policy.kappa,
                kappa_prefill: policy.kappa_prefill,
                eta: policy.eta,
                eviction_age: policy.eviction_age,
                staleness: policy.staleness,
                topology_penalty: self.topology.penalty,
                cold_transfer: Millis(self.topology.cold_transfer_ms),
                expected_output: Tokens(u64::from(policy.expected_output_tokens)),
                local_prefill: policy.local_prefill != LocalPrefill::Forbidden,
                prefer_remote: policy.local_prefill == LocalPrefill::Fallback,
                mix_revisions: policy.mix_revisions,
                temperature: Millis(policy.temperature_ms),
            },
            reservations: Bounds {
                admission: Duration::from_millis(self.reservations.admission_ms),
                remember: Duration::from_millis(self.reservations.remember_ms),
                max_open: self.reservations.max_open,
                max_ended: self.reservations.max_ended,
            },
            backlog: backlog::Bounds {
                max_requests: self.backlog.max_requests,
                max_bytes: self.backlog.max_bytes,
                aging: Duration::from_millis(self.backlog.aging_ms),
                fair: self.backlog.fair,
            },
            depth: (self.backlog.max_requests > 0 && self.backlog.worker_queue_ms > 0)
                .then_some(Millis(self.backlog.worker_queue_ms as f64)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_those_of_the_domain() {
        let valid = Config::default().validate().unwrap();
        assert_eq!(valid.settings, Settings::default());
    }

    #[test]
    fn the_sample_file_says_the_defaults() {
        let text = include_str!("../config/default.toml");
        let sample: Config = armature_svc_kit::config::parse_toml(text).unwrap();
        assert_eq!(toml::Value::try_from(sample).unwrap(), toml::Value::try_from(Config::default()).unwrap());
        // Complete: every key is written, those that have no default as a comment.
        let written: toml::Table = text.parse().unwrap();
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        assert_eq!(written, defaults);
    }

    #[test]
    fn a_policy_goes_by_its_name() {
        for kind in PolicyKind::ALL {
            let text = format!("[policy]\nname = {:?}", kind.name());
            let config: Config = armature_svc_kit::config::parse_toml(&text).unwrap();
            assert_eq!(config.validate().unwrap().settings.policy, *kind);
        }
        let wrong = armature_svc_kit::config::parse_toml::<Config>("[policy]\nname = \"best\"").unwrap_err();
        let names = "\"best\" is none of kv, round-robin, least-loaded, direct, power-of-two, session";
        assert!(wrong.to_string().contains(names), "{wrong}");
    }

    #[test]
    fn what_cannot_work_is_named() {
        let mut config = Config::default();
        config.policy.eta = f64::NAN;
        assert_eq!(config.validate().unwrap_err().to_string(), "policy.eta is negative or not a number");
        let mut config = Config::default();
        config.index.max_bytes = 1;
        let problem = "index.max_bytes is below 1048576, what an empty index may take";
        assert_eq!(config.validate().unwrap_err().to_string(), problem);
        let config = Config { discovery: Vec::new(), ..Config::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "discovery is zero or empty");
    }
}
