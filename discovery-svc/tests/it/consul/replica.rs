//! One replica's side of a Consul, at work.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use armature_discovery::adapters::consul::Consul;
use armature_discovery::adapters::consul::metrics::ConsulMetrics;
use armature_discovery::adapters::consul::settings::ConsulSettings;
use armature_discovery::config::ConsulConfig;
use armature_discovery::domain::store::Limits;
use armature_svc_kit::drain::Drain;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long a state may take to come about on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What is waited for has to come about.
pub(crate) async fn patiently<T>(what: &str, state: impl Future<Output = T>) -> T {
    timeout(PATIENCE, state).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// A backend that works until it is dropped.
pub(crate) struct Side {
    pub(crate) consul: Arc<Consul>,
    #[allow(dead_code)]
    pub(crate) metrics: ConsulMetrics,
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
        let metrics = ConsulMetrics::default();
        let consul = Consul::new(&settings, limits, base, 8192, metrics.clone()).unwrap();
        let running = AbortOnDropHandle::new(tokio::spawn(consul.clone().run(Drain::new())));
        Self { consul: Arc::new(consul), metrics, _running: running }
    }

    /// In sight.
    pub(crate) async fn open(config: ConsulConfig, limits: Limits) -> Self {
        let side = Self::start(config, limits);
        patiently("Consul in sight", side.consul.until_in_sight()).await;
        side
    }
}
