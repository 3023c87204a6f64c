//! What travels with a call, hop by hop.

use std::time::Duration;

use armature_svc_kit::call::{Call, RequestId};
use armature_svc_kit::grpc_timeout;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::ServerOptions;
use hyper::body::Body as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::Instant;
use tonic::Code;

use crate::probe::{Probe, Served, call, request};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async fn two_hops() -> (Served, Served) {
    let network = Network::new();
    let last = Served::start(&network, "last", ServerOptions::default(), Probe::default()).await;
    let probe = Probe { next: Some(last.channel()), ..Probe::default() };
    let first = Served::start(&network, "first", ServerOptions::default(), probe).await;
    (first, last)
}

#[tokio::test(start_paused = true)]
async fn identity_and_remaining_time_pass_through_a_hop() {
    let (first, _last) = two_hops().await;
    let given = [("x-request-id", "abc"), ("traceparent", PARENT), ("grpc-timeout", "5S")];
    let answer = call(&first.channel(), "Forward", &given).await;
    assert_eq!(answer.status.code(), Code::Ok);
    assert_eq!(answer.headers["x-request-id"], "abc");
    assert_eq!(answer.headers["traceparent"], PARENT);
    let left = grpc_timeout::decode(answer.headers["grpc-timeout"].to_str().unwrap()).unwrap();
    assert!(left <= Duration::from_secs(5) && left > Duration::from_secs(4), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_request_id_gets_one() {
    let (first, _last) = two_hops().await;
    let answer = call(&first.channel(), "Forward", &[]).await;
    assert_eq!(answer.headers["x-request-id"].len(), 32);
    assert!(!answer.headers.contains_key("grpc-timeout"));
    assert!(!answer.headers.contains_key("traceparent"));
}

#[tokio::test(start_paused = true)]
async fn a_call_in_scope_gives_its_deadline() {
    let (first, _last) = two_hops().await;
    let start = Instant::now();
    let outer = Call {
        deadline: Some(start + Duration::from_secs(3)),
        request_id: RequestId::parse("outer"),
        trace: None,
    };
    let channel = first.channel();
    let answer = outer.clone().scope(call(&channel, "Echo", &[])).await;
    assert_eq!(answer.headers["x-request-id"], "outer");
    let answer = outer.clone().scope(call(&channel, "Hang", &[])).await;
    assert_eq!(answer.status.code(), Code::DeadlineExceeded);
    assert!(start.elapsed() >= Duration::from_secs(3));
    // Now it has passed, and nothing is sent any more.
    let answer = outer.scope(call(&channel, "Echo", &[])).await;
    assert_eq!(answer.status.code(), Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cancels_the_handler_and_cuts_a_stream() {
    let network = Network::new();
    let probe = Probe::default();
    let served = Served::start(&network, "probe", ServerOptions::default(), probe.clone()).await;
    let hung = call(&served.channel(), "Hang", &[("grpc-timeout", "2S")]).await;
    assert_eq!(hung.status.code(), Code::DeadlineExceeded);
    let cut = call(&served.channel(), "Stream", &[("grpc-timeout", "3500m")]).await;
    assert_eq!(cut.status.code(), Code::DeadlineExceeded);
    assert_eq!(cut.messages, 3);
    probe.alive.reaches(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_cancels_the_handler() {
    let network = Network::new();
    let probe = Probe::default();
    let served = Served::start(&network, "probe", ServerOptions::default(), probe.clone()).await;
    let channel = served.channel();
    for method in ["Hang", "Stream"] {
        let channel = channel.clone();
        let caller = tokio::spawn(async move { call(&channel, method, &[]).await });
        probe.alive.reaches(1).await;
        caller.abort();
        probe.alive.reaches(0).await;
    }
}

/// gRPC's C core, and so Python, takes an empty data frame behind a status in the headers for a broken stream.
#[tokio::test(start_paused = true)]
async fn a_status_in_the_headers_ends_the_stream() {
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), Probe::default()).await;
    let connection = TokioIo::new(served.network.connect(&served.address).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), connection).await.unwrap();
    tokio::spawn(connection);
    let deadline = [("grpc-timeout", "5S")];
    for (method, headers) in [("Unknown", &[][..]), ("Unknown", &deadline), ("Panic", &[])] {
        let answer = sender.send_request(request(method, headers)).await.unwrap();
        assert!(answer.headers().contains_key("grpc-status"), "{method}: {answer:?}");
        assert!(answer.body().is_end_stream(), "{method}: {answer:?}");
    }
}
