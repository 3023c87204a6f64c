//! A peer that is there and does not answer.

use std::time::Duration;

use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels, KeepAlive};
use armature_svc_kit::network::Network;
use tokio::time::Instant;
use tonic::Code;

use crate::probe::call;

/// Accepts and then neither reads nor writes.
#[tokio::test(start_paused = true)]
async fn a_hanging_peer_is_noticed_by_pings() {
    for keep_alive in [KeepAlive::EAGER, KeepAlive::PATIENT] {
        let network = Network::new();
        let address = Address::mem("stopped");
        let mut listener = network.bind(&address).await.unwrap();
        let stopped = tokio::spawn(async move {
            let connection = listener.accept().await;
            std::future::pending::<()>().await;
            drop((connection, listener));
        });
        let channels = Channels::new(network, ChannelOptions::default()).unwrap();
        let start = Instant::now();
        let answer = call(&channels.with_keep_alive(&address, keep_alive), "Echo", &[]).await;
        assert_ne!(answer.status.code(), Code::Ok);
        assert_eq!(answer.status.code(), Code::Unavailable, "{:?}", answer.status);
        let noticed = start.elapsed();
        let limit = keep_alive.interval + keep_alive.timeout;
        assert!(noticed >= keep_alive.interval && noticed <= limit + Duration::from_secs(1), "{noticed:?}");
        stopped.abort();
    }
}
