//! What a server refuses and survives.

use armature_contracts::error::{Fault, Reason};
use armature_svc_kit::channel::ChannelOptions;
use armature_svc_kit::network::Network;
use armature_svc_kit::secret::Secret;
use armature_svc_kit::server::ServerOptions;
use http_body_util::BodyExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use tower::ServiceExt as _;

use crate::probe::{Probe, Served, call, request};

#[tokio::test(start_paused = true)]
async fn a_panic_ends_one_call_only() {
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), Probe::default()).await;
    let channel = served.channel();
    let panicked = call(&channel, "Panic", &[]).await;
    assert_eq!(Fault::from_status(&panicked.status).reason, Reason::Internal);
    assert!(!panicked.status.message().contains("probe panics"));
    let late = call(&channel, "StreamPanic", &[]).await;
    assert_eq!(late.status.code(), Code::Internal);
    assert_eq!(late.messages, 1);
    assert_eq!(served.metrics.panics(), 2);
    assert_eq!(call(&channel, "Echo", &[]).await.status.code(), Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_are_refused_at_once() {
    let options = ServerOptions { max_in_flight: 1, ..ServerOptions::default() };
    let probe = Probe::default();
    let served = Served::start(&Network::new(), "probe", options, probe.clone()).await;
    let channel = served.channel();
    let held = {
        let channel = channel.clone();
        tokio::spawn(async move { call(&channel, "Stream", &[]).await })
    };
    probe.alive.reaches(1).await;
    let fault = Fault::from_status(&call(&channel, "Echo", &[]).await.status);
    assert_eq!(fault.reason, Reason::Overloaded);
    assert!(fault.retry_after.is_some());
    // A full server is alive and says so.
    HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await.unwrap();
    held.abort();
    probe.alive.reaches(0).await;
    assert_eq!(call(&channel, "Echo", &[]).await.status.code(), Code::Ok);
    assert_eq!(served.metrics.in_flight(), 0);
}

/// Late messages of cancelled streams count as errors of the connection in h2, by default 1024 in
/// its whole life; then every stream of it dies.
#[tokio::test(start_paused = true)]
async fn many_cancelled_streams_do_not_end_the_connection() {
    let probe = Probe::default();
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), probe.clone()).await;
    let channel = served.channel();
    let mut witness = channel.clone().oneshot(request("Stream", &[])).await.unwrap().into_body();
    for _ in 0..2000 {
        let mut flood = channel.clone().oneshot(request("Flood", &[])).await.unwrap().into_body();
        assert!(flood.frame().await.unwrap().unwrap().is_data());
    }
    assert!(witness.frame().await.unwrap().unwrap().is_data());
    drop(witness);
    probe.alive.reaches(0).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_service_token_opens() {
    let token = |text| Some(Secret::from_value(text).unwrap());
    let options = ServerOptions { token: token("s3cret"), ..ServerOptions::default() };
    let served = Served::start(&Network::new(), "probe", options, Probe::default()).await;
    let echo = async |token| {
        let channels = served.channels(ChannelOptions { token, ..ChannelOptions::default() });
        call(&channels.to(&served.address), "Echo", &[]).await.status
    };
    assert_eq!(echo(token("s3cret")).await.code(), Code::Ok);
    for wrong in [None, token("s3cres"), token("s3cret0"), token("s3")] {
        assert_eq!(Fault::from_status(&echo(wrong).await).reason, Reason::Unauthenticated);
    }
    HealthClient::new(served.channel()).check(HealthCheckRequest::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_channel_is_opened_anew_and_its_streams_go_on() {
    let probe = Probe::default();
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), probe.clone()).await;
    let channels = served.channels(ChannelOptions::default());
    let streaming = channels.to(&served.address);
    let held = tokio::spawn(async move { call(&streaming, "Stream", &[]).await });
    probe.alive.reaches(1).await;
    channels.forget(&served.address);
    assert_eq!(channels.cached(), 0);
    assert_eq!(call(&channels.to(&served.address), "Echo", &[]).await.status.code(), Code::Ok);
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(served.metrics.in_flight() == 1 && !held.is_finished());
    held.abort();
    probe.alive.reaches(0).await;
}

#[tokio::test(start_paused = true)]
async fn channels_are_shared_and_bounded() {
    let network = Network::new();
    let served = Served::start(&network, "probe", ServerOptions::default(), Probe::default()).await;
    let channels = served.channels(ChannelOptions { cached: 2, ..ChannelOptions::default() });
    for name in ["a", "b", "probe", "c", "probe", "d", "probe"] {
        channels.to(&armature_svc_kit::address::Address::mem(name));
        assert!(channels.cached() <= 2);
    }
    assert_eq!(call(&channels.to(&served.address), "Echo", &[]).await.status.code(), Code::Ok);
}
