//! Configuration, as it is written; [`Config::validate`] makes the settings of the parts.

use std::path::PathBuf;
use std::time::Duration;

use armature_svc_kit::address::Address;
use armature_svc_kit::secret::Secret;
use armature_svc_kit::telemetry::TelemetryConfig;
use http::HeaderName;
use serde::{Deserialize, Serialize};

use crate::domain::flight::Limits;
use crate::session::pipeline::Settings;

/// Configuration of a frontend.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the HTTP API; port 0 is ephemeral.
    pub http: Address,
    /// Address of the gRPC API.
    pub grpc: Address,
    /// Address of the admin HTTP server; none: no admin server.
    pub admin: Option<Address>,
    /// gRPC address to register instead of the bound one, for instance behind a wildcard.
    pub advertise: Option<Address>,
    /// Discovery services, tried in turn.
    pub discovery: Vec<Address>,
    /// Where the last good view of the membership is kept; unset: nowhere.
    pub view_file: Option<PathBuf>,
    /// Deployment this frontend belongs to.
    pub namespace: String,
    /// Token shared by the services, sent with every call to them.
    pub token: Option<Secret>,
    /// Generations in flight before others are refused with 429.
    pub max_in_flight: usize,
    /// Connections of each API; others wait to be accepted.
    pub max_connections: usize,
    /// Longest body of an HTTP request, bytes.
    pub max_body_bytes: usize,
    /// Longest wait for the first token when the client names no deadline, seconds.
    pub first_token_seconds: u64,
    /// Longest wait between tokens, seconds.
    pub between_tokens_seconds: u64,
    /// Refusals of workers after which a request is not tried again.
    pub max_retries: u32,
    /// Moves of one request to other workers, of all kinds.
    pub max_moves: u32,
    /// Longest wait for a worker or a router while none is READY, seconds; 0: such a request is refused at once.
    pub hold_seconds: u64,
    /// Wait for room at a worker of a request that names none, milliseconds; 0: none. A request names its own in x-armature-max-queue-ms, at most
    /// first_token_seconds. Routers have a limit of their own.
    pub max_queue_ms: u64,
    /// Header in which a trusted proxy names the tenant that it has authenticated, and which it takes out of what clients send; empty: all are
    /// one tenant.
    pub tenant_header: String,
    /// Seconds that accepted requests may take after a shutdown was asked for.
    pub drain_seconds: u64,
    /// Endpoint Picker of a Kubernetes Gateway.
    pub gateway: GatewayConfig,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
}

/// Gateway mode.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Address of the Endpoint Picker (Envoy ext_proc); none: there is none.
    pub listen: Option<Address>,
    /// HTTP address of the frontends that Envoy is sent to for engines which speak gRPC; unset: this one.
    pub frontend: Option<Address>,
    /// Whether workers named in x-armature-pin-* headers are asked for first: where only a gateway reaches this frontend. A frontend that
    /// is an Endpoint Picker does so whatever this says.
    pub follow_pins: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: Address::tcp("127.0.0.1", 8000),
            grpc: Address::tcp("127.0.0.1", 8001),
            admin: Some(Address::tcp("127.0.0.1", 8010)),
            advertise: None,
            discovery: vec![Address::tcp("127.0.0.1", 7100)],
            view_file: None,
            namespace: "default".into(),
            token: None,
            max_in_flight: 4096,
            max_connections: 16_384,
            max_body_bytes: 16 * 1024 * 1024,
            first_token_seconds: 600,
            between_tokens_seconds: 60,
            max_retries: 3,
            max_moves: 16,
            hold_seconds: 10,
            max_queue_ms: 60_000,
            tenant_header: String::new(),
            drain_seconds: 120,
            gateway: GatewayConfig::default(),
            telemetry: TelemetryConfig::default(),
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

impl Config {
    /// Checks what types do not.
    pub fn validate(&self) -> Result<Settings, Invalid> {
        let counts = [
            ("max_in_flight", self.max_in_flight as u64),
            ("max_connections", self.max_connections as u64),
            ("max_body_bytes", self.max_body_bytes as u64),
            ("first_token_seconds", self.first_token_seconds),
            ("between_tokens_seconds", self.between_tokens_seconds),
            ("max_moves", self.max_moves.into()),
            ("discovery", self.discovery.len() as u64),
            ("namespace", self.namespace.len() as u64),
        ];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Invalid { key, problem: "zero or empty" });
        }
        let tenant_header = match self.tenant_header.as_str() {
            "" => None,
            name => Some(
                HeaderName::from_bytes(name.as_bytes())
                    .map_err(|_| Invalid { key: "tenant_header", problem: "not the name of a header" })?,
            ),
        };
        Ok(Settings {
            namespace: self.namespace.clone(),
            max_in_flight: self.max_in_flight,
            first_token: Duration::from_secs(self.first_token_seconds),
            between_tokens: Duration::from_secs(self.between_tokens_seconds),
            limits: Limits { retries: self.max_retries, moves: self.max_moves, ..Limits::default() },
            hold: Duration::from_secs(self.hold_seconds),
            max_queue: Duration::from_millis(self.max_queue_ms),
            tenant_header,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn defaults_are_valid_and_those_of_the_domain() {
        assert_eq!(Config::default().validate().unwrap().limits, Limits::default());
    }

    #[test]
    fn the_sample_file_says_the_defaults() {
        let text = include_str!("../config/default.toml");
        let sample: Config = armature_svc_kit::config::parse_toml(text).unwrap();
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        assert_eq!(toml::Table::try_from(sample).unwrap(), defaults);
        // Complete: every key is written, those that have no default as a comment.
        assert_eq!(text.parse::<toml::Table>().unwrap(), defaults);
        for unset in ["advertise", "view_file", "listen", "frontend", "token", "otlp_endpoint"] {
            assert!(text.contains(&format!("# {unset} = ")), "{unset}");
        }
    }

    #[test]
    fn what_cannot_work_is_named() {
        let config = Config { discovery: Vec::new(), ..Config::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "discovery is zero or empty");
        let config = Config { tenant_header: "a b".into(), ..Config::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "tenant_header is not the name of a header");
    }
}
