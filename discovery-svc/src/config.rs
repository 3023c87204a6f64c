//! The configuration, as it is written and as it is used.

use std::path::PathBuf;
use std::time::Duration;

use armature_contracts::MAX_MESSAGE_BYTES;
use armature_svc_kit::address::Address;
use armature_svc_kit::config::ConfigError;
use armature_svc_kit::secret::Secret;
use armature_svc_kit::server::ServerOptions;
use armature_svc_kit::telemetry::TelemetryConfig;
use serde::{Deserialize, Serialize};

use crate::adapters::consul::settings::ConsulSettings;
use crate::domain::guard::MassLoss;
use crate::domain::registry::Rules;
use crate::domain::store::Limits;

/// As it is written; config/default.toml describes each key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.toml describes each key")]
pub struct Config {
    pub listen: Address,
    pub admin: Option<Address>,
    pub token: Option<Secret>,
    pub drain_seconds: u64,
    pub backend: BackendConfig,
    pub consul: ConsulConfig,
    pub lease: LeaseConfig,
    pub mass_loss: MassLossConfig,
    pub limits: LimitsConfig,
    pub telemetry: TelemetryConfig,
}

/// Where the state is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.toml describes each key")]
pub struct BackendConfig {
    pub kind: BackendKind,
    pub file: Option<PathBuf>,
    pub reload_seconds: u64,
}

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// In this process.
    Memory,
    /// In this process, with static instances from a file.
    File,
    /// In Consul, shared by any number of replicas.
    Consul,
}

/// Where Consul is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.toml describes each key")]
pub struct ConsulConfig {
    pub url: String,
    pub token: Option<Secret>,
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub datacenter: Option<String>,
    pub prefix: String,
}

/// When a lease ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.toml describes each key")]
pub struct LeaseConfig {
    pub heartbeat_ms: u64,
    pub grace_seconds: u64,
    pub ttl_seconds: u64,
    pub recovery_seconds: u64,
    pub tombstone_seconds: u64,
}

/// When losses are a mass loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.toml describes each key")]
pub struct MassLossConfig {
    pub share: f64,
    pub at_least: usize,
}

/// Every bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.toml describes each key")]
pub struct LimitsConfig {
    pub instances: usize,
    pub instance_bytes: usize,
    pub tombstones: usize,
    pub leaders: usize,
    pub watchers: usize,
    pub deltas: usize,
    pub changes: usize,
    pub card_bytes: usize,
    pub artifact_bytes: usize,
    pub calls: usize,
    pub connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Address::tcp("127.0.0.1", 7100),
            admin: Some(Address::tcp("127.0.0.1", 7110)),
            token: None,
            drain_seconds: 5,
            backend: BackendConfig::default(),
            consul: ConsulConfig::default(),
            lease: LeaseConfig::default(),
            mass_loss: MassLossConfig::default(),
            limits: LimitsConfig::default(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self { kind: BackendKind::Memory, file: None, reload_seconds: 10 }
    }
}

impl Default for ConsulConfig {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8500".to_owned(),
            token: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            datacenter: None,
            prefix: "armature".to_owned(),
        }
    }
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            heartbeat_ms: 1000,
            grace_seconds: 5,
            ttl_seconds: 30,
            recovery_seconds: 30,
            tombstone_seconds: 600,
        }
    }
}

impl Default for MassLossConfig {
    fn default() -> Self {
        Self { share: 0.2, at_least: 3 }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            instances: 10_000,
            instance_bytes: 32 * 1024 * 1024,
            tombstones: 100_000,
            leaders: 1024,
            watchers: 1024,
            deltas: 8192,
            changes: 8192,
            card_bytes: 64 * 1024 * 1024,
            artifact_bytes: 512 * 1024 * 1024,
            calls: 32_768,
            connections: 16_384,
        }
    }
}

/// As it is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where gRPC is served.
    pub listen: Address,
    /// Where the admin pages are served.
    pub admin: Option<Address>,
    /// Of the gRPC server.
    pub server: ServerOptions,
    /// How long accepted calls may take once the service stops.
    pub drain: Duration,
    /// Where the state is.
    pub backend: BackendSettings,
    /// How often instances send heartbeats.
    pub heartbeat: Duration,
    /// Of the replica.
    pub rules: Rules,
    /// Of the backend.
    pub limits: Limits,
    /// Watchers at a time.
    pub watchers: usize,
    /// Changes a replica may be behind its backend.
    pub changes: usize,
}

/// Where the state is.
#[derive(Clone, Debug, PartialEq)]
pub enum BackendSettings {
    /// In this process.
    Memory,
    /// In this process, with static instances.
    File {
        /// That lists them.
        path: PathBuf,
        /// How often it is looked at, besides being watched.
        reload: Duration,
    },
    /// In Consul.
    Consul(Box<ConsulSettings>),
}

impl Config {
    /// Checks what the types cannot say.
    pub fn validate(self) -> Result<Settings, ConfigError> {
        let Self { listen, admin, token, drain_seconds, backend, consul, lease, mass_loss, limits, .. } =
            self;
        let positive = [
            ("lease.heartbeat_ms", lease.heartbeat_ms),
            ("lease.grace_seconds", lease.grace_seconds),
            ("lease.ttl_seconds", lease.ttl_seconds),
            ("lease.tombstone_seconds", lease.tombstone_seconds),
            ("backend.reload_seconds", backend.reload_seconds),
            ("mass_loss.at_least", mass_loss.at_least as u64),
            ("limits.instances", limits.instances as u64),
            ("limits.instance_bytes", limits.instance_bytes as u64),
            ("limits.tombstones", limits.tombstones as u64),
            ("limits.leaders", limits.leaders as u64),
            ("limits.watchers", limits.watchers as u64),
            ("limits.deltas", limits.deltas as u64),
            ("limits.changes", limits.changes as u64),
            ("limits.card_bytes", limits.card_bytes as u64),
            ("limits.artifact_bytes", limits.artifact_bytes as u64),
            ("limits.calls", limits.calls as u64),
            ("limits.connections", limits.connections as u64),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::invalid(*key, "must not be 0"));
        }
        let ttl = Duration::from_secs(lease.ttl_seconds);
        let heartbeat = Duration::from_millis(lease.heartbeat_ms);
        if heartbeat * 3 > ttl {
            return Err(ConfigError::invalid("lease.ttl_seconds", "must be at least three heartbeats"));
        }
        if limits.instance_bytes > MAX_MESSAGE_BYTES * 3 / 4 {
            return Err(ConfigError::invalid(
                "limits.instance_bytes",
                "does not leave a snapshot room in one message",
            ));
        }
        if !(0.0..=1.0).contains(&mass_loss.share) {
            return Err(ConfigError::invalid("mass_loss.share", "must be from 0 to 1"));
        }
        let backend = match (backend.kind, backend.file.clone()) {
            (BackendKind::Memory, _) => BackendSettings::Memory,
            (BackendKind::File, Some(path)) => {
                BackendSettings::File { path, reload: Duration::from_secs(backend.reload_seconds) }
            }
            (BackendKind::Consul, _) => BackendSettings::Consul(Box::new(ConsulSettings::new(consul, ttl)?)),
            (BackendKind::File, None) => {
                return Err(ConfigError::invalid(
                    "backend.file",
                    "must name the file when backend.kind is file",
                ));
            }
        };
        Ok(Settings {
            server: ServerOptions {
                max_in_flight: limits.calls,
                max_connections: limits.connections,
                token,
                ..ServerOptions::default()
            },
            listen,
            admin,
            drain: Duration::from_secs(drain_seconds),
            backend,
            heartbeat,
            rules: Rules {
                grace: Duration::from_secs(lease.grace_seconds),
                ttl,
                recovery: Duration::from_secs(lease.recovery_seconds.max(lease.ttl_seconds)),
                mass_loss: MassLoss { window: ttl, share: mass_loss.share, at_least: mass_loss.at_least },
                ring: limits.deltas,
                instances: limits.instances,
            },
            limits: Limits {
                ttl,
                tombstone_ttl: Duration::from_secs(lease.tombstone_seconds),
                instances: limits.instances,
                instance_bytes: limits.instance_bytes,
                tombstones: limits.tombstones,
                leaders: limits.leaders,
                card_bytes: limits.card_bytes,
                artifact_bytes: limits.artifact_bytes,
            },
            watchers: limits.watchers,
            changes: limits.changes,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use armature_svc_kit::config::parse_toml;

    #[test]
    fn the_sample_is_the_default() {
        let sample: toml::Table = include_str!("../config/default.toml").parse().unwrap();
        assert_eq!(sample, toml::Table::try_from(Config::default()).unwrap());
        let config: Config = parse_toml(include_str!("../config/default.toml")).unwrap();
        assert_eq!(config, Config::default());
        config.validate().unwrap();
    }

    #[test]
    fn nonsense_is_refused_by_its_key() {
        let wrong = [
            ("lease.ttl_seconds", "lease.ttl_seconds = 2"),
            ("limits.watchers", "limits.watchers = 0"),
            ("mass_loss.share", "mass_loss.share = 1.5"),
            ("backend.file", "backend.kind = \"file\""),
            ("consul.url", "backend.kind = \"consul\"\nconsul.url = \"consul:8500\""),
            ("consul.url", "backend.kind = \"consul\"\nconsul.ca_file = \"ca.pem\""),
            ("consul.key_file", "backend.kind = \"consul\"\nconsul.cert_file = \"me.pem\""),
            ("consul.prefix", "backend.kind = \"consul\"\nconsul.prefix = \"My Fleet\""),
            ("consul.datacenter", "backend.kind = \"consul\"\nconsul.datacenter = \"a&b\""),
        ];
        for (key, text) in wrong {
            let config: Config = parse_toml(text).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
