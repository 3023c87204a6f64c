//! The consumer's own look at an instance it doubts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::instance::Instance;
use crate::channel::{Channels, KeepAlive};

/// Longest time for one probe: it is done every second.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Says whether an instance is alive. Bounded by [`PROBE_TIMEOUT`] by whoever calls it.
pub type Probe = Arc<dyn Fn(Arc<Instance>) -> BoxFuture<'static, bool> + Send + Sync>;

/// Asks grpc.health.v1 at the instance's `grpc` address. Any answer is a sign of life, also that
/// it serves no longer: whether it takes work is for its status to say.
pub fn health_probe(channels: Channels) -> Probe {
    Arc::new(move |instance| {
        let channel = instance.grpc().map(|address| channels.with_keep_alive(&address, KeepAlive::EAGER));
        Box::pin(async move {
            let Some(channel) = channel else { return false };
            let mut client = HealthClient::new(channel);
            let check = Box::pin(client.check(HealthCheckRequest::default()));
            matches!(timeout(PROBE_TIMEOUT, check).await, Ok(Ok(_)))
        })
    })
}
