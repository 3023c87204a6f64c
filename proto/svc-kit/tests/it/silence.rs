//! Clients that connect and say nothing, or stop in the middle: their connections end, and make room for others.

use std::sync::Arc;
use std::time::Duration;

use armature_svc_kit::address::Address;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::{Connection, Network};
use armature_svc_kit::server::ServerOptions;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::probe::{Probe, Served, call};

/// Far beyond any limit here; virtual.
const PATIENCE: Duration = Duration::from_secs(60);
/// What an HTTP/2 client begins with, and its empty SETTINGS.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// All that the server says until it ends the connection.
async fn until_ended(mut connection: Connection) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is an end, too.
    let _ = timeout(PATIENCE, connection.read_to_end(&mut said)).await.expect("the server ends it");
    said
}

#[tokio::test(start_paused = true)]
async fn a_grpc_client_that_stops_before_or_after_its_greeting_is_ended() {
    let options = ServerOptions { max_connections: 1, ..ServerOptions::default() };
    let served = Served::start(&Network::new(), "silence", options, Probe::default()).await;
    for said in [&b""[..], b"PRI * HTTP", b"GET / HTTP/1.1\r\n", GREETING] {
        let mut silent = served.network.connect(&served.address).await.unwrap();
        silent.write_all(said).await.unwrap();
        until_ended(silent).await;
    }
    // The one place is free again.
    assert_eq!(call(&served.channel(), "Echo", &[]).await.status.code(), tonic::Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn silent_connections_do_not_keep_the_admin_pages_from_others() {
    let network = Network::new();
    let address = Address::mem("admin");
    let admin = Admin {
        service: "probe",
        version: "1",
        ready: Ready::new(),
        registry: Arc::new(Registry::default()),
    };
    let listener = network.bind(&address).await.unwrap();
    let served = tokio::spawn(admin.serve(listener, Drain::new()));
    // More than are served at a time: some say nothing, some stop in the middle, some after an answer.
    let mut silent = Vec::new();
    for said in [&b""[..], b"GET /liv", b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"].iter().cycle().take(90) {
        let mut connection = network.connect(&address).await.unwrap();
        connection.write_all(said).await.unwrap();
        silent.push(tokio::spawn(until_ended(connection)));
    }
    let mut asks = network.connect(&address).await.unwrap();
    asks.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let answer = until_ended(asks).await;
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
    for connection in silent {
        connection.await.unwrap();
    }
    served.abort();
}
