//! Replicas over a Consul, and how a plain user of Consul looks at them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use armature_discovery::adapters::consul::Consul;
use armature_discovery::adapters::consul::metrics::ConsulMetrics;
use armature_discovery::adapters::consul::settings::ConsulSettings;
use armature_discovery::config::{BackendConfig, BackendKind, Config, ConsulConfig, LeaseConfig};
use armature_discovery::domain::store::Limits;
use armature_svc_kit::address::Address;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use armature_test_backends::Consul as Agent;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::fleet::{Fleet, Server};
use crate::operations::page;

/// How long a state may take to come about on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// What is waited for has to come about.
pub(crate) async fn patiently<T>(what: &str, state: impl Future<Output = T>) -> T {
    timeout(PATIENCE, state).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// A backend that works until it is dropped.
pub(crate) struct Side {
    pub(crate) consul: Arc<Consul>,
    _running: AbortOnDropHandle<()>,
}

/// A configuration for an agent.
pub(crate) fn config(url: &str, prefix: &str) -> ConsulConfig {
    ConsulConfig { url: url.to_owned(), prefix: prefix.to_owned(), ..ConsulConfig::default() }
}

impl Side {
    /// Looks for Consul, and does not wait until it is in sight.
    pub(crate) fn start(config: ConsulConfig, limits: Limits) -> Self {
        let settings = ConsulSettings::new(config, limits.ttl).unwrap();
        let base = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let consul = Consul::new(&settings, limits, base, 8192, ConsulMetrics::default()).unwrap();
        let running = AbortOnDropHandle::new(tokio::spawn(consul.clone().run(Drain::new())));
        Self { consul: Arc::new(consul), _running: running }
    }

    /// In sight.
    pub(crate) async fn open(config: ConsulConfig, limits: Limits) -> Self {
        let side = Self::start(config, limits);
        patiently("Consul in sight", side.consul.until_in_sight()).await;
        side
    }
}

/// The configuration of a whole service with short times.
pub(crate) fn service(name: &str, consul: ConsulConfig) -> Config {
    let lease =
        LeaseConfig { ttl_seconds: 6, recovery_seconds: 6, grace_seconds: 2, ..LeaseConfig::default() };
    let backend = BackendConfig { kind: BackendKind::Consul, ..BackendConfig::default() };
    Config {
        admin: Some(Address::mem(format!("{name}-admin"))),
        backend,
        consul,
        lease,
        ..Fleet::config(name)
    }
}

/// A replica that has seen Consul.
pub(crate) async fn serve(fleet: &Fleet, config: Config) -> Server {
    let server = fleet.serve(config).await;
    let ready = until(async || page(&fleet.network, server.admin(), "/readyz").await.contains("200 OK"));
    patiently("readiness", ready).await;
    server
}

/// Waits until a condition that is looked at from outside holds.
pub(crate) async fn until(condition: impl AsyncFn() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What a plain user of Consul gets from its HTTP API.
pub(crate) async fn plain(agent: &Agent, path: &str) -> Value {
    let network = Network::new();
    let mut connection = network.connect(&Address::tcp("127.0.0.1", agent.port())).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: consul\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{path}: {answer}"))
}

/// How many entries of a service an agent shows, with a filter like `?passing`.
pub(crate) async fn entries(agent: &Agent, service: &str, filter: &str) -> usize {
    plain(agent, &format!("/v1/health/service/{service}{filter}")).await.as_array().unwrap().len()
}
