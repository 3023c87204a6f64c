//! The consumer's own look at an instance it doubts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::instance::Instance;
use crate::channel::{Channel, Channels, KeepAlive};
use crate::server::{INSTANCE, instance_name};

/// Longest time for one probe: it is done every second.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Says whether an instance is alive. Bounded by [`PROBE_TIMEOUT`] by whoever calls it.
pub type Probe = Arc<dyn Fn(Arc<Instance>) -> BoxFuture<'static, bool> + Send + Sync>;

/// Asks grpc.health.v1 at the instance's `grpc` address. Any answer is a sign of life, also that it serves no longer: whether it takes
/// work is for its status to say. A server that names its incarnation ([`Server::instance`](crate::server::Server::instance)) and has
/// another id answers for its successor: the instance itself is dead.
pub fn health_probe(channels: Channels) -> Probe {
    Arc::new(move |instance| {
        let channel = instance.grpc().map(|address| channels.with_keep_alive(&address, KeepAlive::EAGER));
        Box::pin(async move {
            let Some(channel) = channel else { return false };
            let client = HealthClient::new(channel);
            timeout(PROBE_TIMEOUT, is_alive(client, &instance)).await.unwrap_or(false)
        })
    })
}

async fn is_alive(mut client: HealthClient<Channel>, instance: &Instance) -> bool {
    let mut knows = async |service: String| match client.check(HealthCheckRequest { service }).await {
        Ok(_) => Some(true),
        Err(status) if status.code() == Code::NotFound => Some(false),
        Err(_) => None,
    };
    match knows(instance_name(instance.id)).await {
        Some(false) => knows(INSTANCE.to_owned()).await == Some(false),
        known => known == Some(true),
    }
}
