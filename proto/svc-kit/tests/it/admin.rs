//! What the admin server says.

use std::sync::Arc;

use armature_svc_kit::address::Address;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::health_check::{self, NotReady};
use armature_svc_kit::network::Network;
use armature_svc_kit::server::ServerMetrics;
use http_body_util::{BodyExt as _, Empty};
use hyper::StatusCode;
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry;

async fn get(network: &Network, path: &str) -> (StatusCode, String) {
    let connection = network.connect(&Address::mem("admin")).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connection)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request =
        http::Request::get(path).header("host", "admin").body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    connection.abort();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn every_page_answers() {
    let network = Network::new();
    let mut registry = Registry::default();
    ServerMetrics::new(registry.sub_registry_with_prefix("armature_probe"));
    let (ready, drain) = (Ready::new(), Drain::new());
    let admin =
        Admin { service: "probe", version: "1.2.3", ready: ready.clone(), registry: Arc::new(registry) };
    let listener = network.bind(&Address::mem("admin")).await.unwrap();
    let served = tokio::spawn(admin.serve(listener, drain.clone()));

    assert_eq!(get(&network, "/livez").await.0, StatusCode::OK);
    assert_eq!(get(&network, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
    let admin = Address::mem("admin");
    let refused = health_check::ready(&network, Some(&admin)).await.unwrap_err();
    assert!(
        matches!(refused, NotReady::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. }),
        "{refused}"
    );
    ready.set(true);
    health_check::ready(&network, Some(&admin)).await.unwrap();
    assert_eq!(get(&network, "/readyz").await.0, StatusCode::OK);
    let (_, metrics) = get(&network, "/metrics").await;
    assert!(metrics.contains("armature_probe_grpc_panics_total 0"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
    let (_, version) = get(&network, "/version").await;
    assert!(version.contains("1.2.3") && version.contains("probe"));
    assert_eq!(get(&network, "/else").await.0, StatusCode::NOT_FOUND);

    drain.begin();
    drain.run(std::time::Duration::ZERO, async {}, async {}).await;
    served.await.unwrap();
    let gone = health_check::ready(&network, Some(&admin)).await.unwrap_err();
    assert!(matches!(gone, NotReady::Unreachable { .. }), "{gone}");
}
