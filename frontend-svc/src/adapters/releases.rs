//! Reservations to be released, in batches, behind the requests' backs. Best effort: a reservation ends by itself 10 s after it was made.

use std::collections::HashMap;
use std::time::Duration;

use armature_contracts::ids::ReservationKey;
use armature_contracts::router::v1::ReleaseRequest;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channels, KeepAlive};
use armature_svc_kit::limited;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Releases that may wait; more are dropped and counted.
const WAITING: usize = 8192;
/// Most reservations of one call, by contract.
const BATCH: usize = 1024;
/// A router that does not answer within it is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes releases without waiting.
#[derive(Debug, Clone)]
pub struct Releases {
    queue: mpsc::Sender<(String, ReservationKey)>,
    dropped: Counter,
}

/// Sends them.
#[derive(Debug)]
pub struct ReleaseSender {
    queue: mpsc::Receiver<(String, ReservationKey)>,
    channels: Channels,
}

/// Both ends.
pub fn releases(channels: Channels, dropped: Counter) -> (Releases, ReleaseSender) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (Releases { queue: sender, dropped }, ReleaseSender { queue: receiver, channels })
}

impl Releases {
    /// `router` no longer needs to hold `key`.
    pub fn push(&self, router: &str, key: ReservationKey) {
        if self.queue.try_send((router.to_owned(), key)).is_err() {
            self.dropped.inc();
        }
    }
}

impl ReleaseSender {
    /// Sends until every [`Releases`] is gone.
    pub async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        while self.queue.recv_many(&mut batch, BATCH).await > 0 {
            let mut by_router: HashMap<String, Vec<ReservationKey>> = HashMap::new();
            for (router, key) in batch.drain(..) {
                by_router.entry(router).or_default().push(key);
            }
            for (router, keys) in by_router {
                self.send(&router, keys).await;
            }
        }
    }

    async fn send(&self, router: &str, keys: Vec<ReservationKey>) {
        let Ok(address) = router.parse::<Address>() else { return };
        let channel = self.channels.with_keep_alive(&address, KeepAlive::EAGER);
        let mut client = limited!(RouterServiceClient::new(channel));
        let request = ReleaseRequest { reservations: keys.into_iter().map(Into::into).collect() };
        match timeout(PATIENCE, client.release(request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => tracing::debug!(router, %status, "release failed"),
            Err(_) => tracing::debug!(router, "release timed out"),
        }
    }
}
