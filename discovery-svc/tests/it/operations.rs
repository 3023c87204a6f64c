//! What an operator sees.

use armature_contracts::discovery::v1::WatchRequest;
use armature_discovery::config::Config;
use armature_svc_kit::address::Address;
use armature_svc_kit::network::Network;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fleet::{Fleet, Lease, View, pass, router};

pub(crate) async fn page(network: &Network, admin: &Address, path: &str) -> String {
    let mut connection = network.connect(admin).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(start_paused = true)]
async fn metrics_show_instances_watchers_and_every_bound() {
    let fleet = Fleet::new();
    let config = Config { admin: Some(Address::mem("admin")), ..Fleet::config("discovery") };
    let server = fleet.serve(config).await;
    let client = server.client();
    let _lease = Lease::open(&client, &router(1)).await;
    let mut view = View::watch(&client, WatchRequest::default()).await;
    view.until_ids(&[1]).await;
    pass(1).await;
    assert!(page(&fleet.network, server.admin(), "/readyz").await.contains("200 OK"));
    let metrics = page(&fleet.network, server.admin(), "/metrics").await;
    for line in [
        "armature_discovery_instances{component=\"router\",status=\"ready\"} 1",
        "armature_discovery_instances{component=\"worker\",status=\"suspect\"} 0",
        "armature_discovery_watchers 1",
        "armature_discovery_leases 1",
        "armature_discovery_resyncs_total 0",
        "armature_discovery_mass_loss{component=\"worker\"} 0",
        "armature_discovery_recovering 1",
        "armature_discovery_registrations_total{result=\"accepted\"} 1",
        "armature_discovery_limit{limit=\"instances\"} 10000",
        "armature_discovery_limit{limit=\"deltas\"} 8192",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mass_loss_rings_until_everybody_is_back() {
    let fleet = Fleet::new();
    let config = Config { admin: Some(Address::mem("admin")), ..Fleet::config("discovery") };
    let server = fleet.serve(config).await;
    let client = server.client();
    let mut leases = Vec::new();
    for id in 1..=3 {
        leases.push(Lease::open(&client, &router(id)).await);
    }
    pass(31).await;
    let alarm = async |state: u8| {
        let line = format!("armature_discovery_mass_loss{{component=\"router\"}} {state}");
        page(&fleet.network, server.admin(), "/metrics").await.contains(&line)
    };
    assert!(alarm(0).await);
    leases.clear();
    pass(7).await;
    assert!(alarm(1).await);
    for id in 1..=3 {
        assert!(alarm(1).await, "{id} is not back yet");
        leases.push(Lease::open(&client, &router(id)).await);
        pass(1).await;
    }
    assert!(alarm(0).await);
}
