//! A server from its first to its last call, and a client that outlives it.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::drain::{Drain, Drained, Phase};
use armature_svc_kit::network::Network;
use armature_svc_kit::server::ServerOptions;
use tokio::io::AsyncBufReadExt as _;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::probe::{Probe, Served, call};

#[tokio::test(start_paused = true)]
async fn drain_refuses_finishes_and_stops_in_this_order() {
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), Probe::default()).await;
    let channel = served.channel();
    assert_eq!(call(&channel, "Echo", &[]).await.status.code(), Code::Ok);
    let work = served.drain.enter().unwrap();
    served.drain.begin();
    let drain = served.drain.clone();
    let run = tokio::spawn(async move { drain.run(Duration::from_secs(30), async {}, async {}).await });
    served.drain.refusing().await;
    assert!(served.drain.enter().is_err());
    // Calls that are part of the shutdown still pass; health tells a load balancer to go elsewhere.
    assert_eq!(call(&channel, "Echo", &[]).await.status.code(), Code::Ok);
    let mut health = HealthClient::new(channel.clone());
    let mut states =
        health.watch(HealthCheckRequest { service: "test.Probe".to_owned() }).await.unwrap().into_inner();
    while let Some(HealthCheckResponse { status }) = states.message().await.unwrap() {
        if status == ServingStatus::NotServing as i32 {
            break;
        }
    }
    assert_eq!(served.drain.phase(), Phase::Refusing);
    drop(work);
    assert_eq!(run.await.unwrap(), Drained::Finished);
    served.task.await.unwrap();
    let after = call(&channel, "Echo", &[]).await;
    assert_eq!(after.status.code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_end_is_cut_after_the_grace() {
    let probe = Probe::default();
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), probe.clone()).await;
    let channel = served.channel();
    let held = tokio::spawn(async move { call(&channel, "Stream", &[]).await });
    probe.alive.reaches(1).await;
    served.drain.begin();
    served.drain.run(Duration::ZERO, async {}, async {}).await;
    served.task.await.unwrap();
    probe.alive.reaches(0).await;
    assert_ne!(held.await.unwrap().status.code(), Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn killing_the_server_cuts_its_streams_at_once() {
    let probe = Probe::default();
    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), probe.clone()).await;
    let channel = served.channel();
    let held = tokio::spawn(async move { call(&channel, "Stream", &[]).await });
    probe.alive.reaches(1).await;
    served.task.abort();
    assert_ne!(held.await.unwrap().status.code(), Code::Ok);
    probe.alive.reaches(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_channel_finds_a_server_that_comes_late_and_comes_back() {
    let network = Network::new();
    let channels = Channels::new(network.clone(), ChannelOptions::default()).unwrap();
    let channel = channels.to(&Address::mem("probe"));
    for _ in 0..3 {
        assert_eq!(call(&channel, "Echo", &[]).await.status.code(), Code::Unavailable);
        let served = Served::start(&network, "probe", ServerOptions::default(), Probe::default()).await;
        // The longest back-off; virtual time.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(call(&channel, "Echo", &[]).await.status.code(), Code::Ok);
        served.task.abort();
        let _ = served.task.await;
    }
}

#[tokio::test]
async fn a_signal_begins_the_drain() {
    let drain = Drain::new();
    let mut signals = std::pin::pin!(drain.clone().on_signals());
    // One poll installs the handlers; without them the signal would end this process.
    assert!(futures_util::poll!(signals.as_mut()).is_pending());
    let itself = std::process::id().to_string();
    let sent = tokio::process::Command::new("kill").args(["-TERM", &itself]).status();
    tokio::select! {
        sent = sent => assert!(sent.unwrap().success()),
        _ = &mut signals => unreachable!("goes on until the second signal"),
    }
    tokio::select! {
        () = drain.draining() => {}
        _ = &mut signals => unreachable!("goes on until the second signal"),
    }
    assert_eq!(drain.phase(), Phase::Announcing);
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "lifecycle::draining_for_ever", "--nocapture"])
        .kill_on_drop(true)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id().unwrap().to_string();
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
    for said in ["serving", "draining"] {
        while !lines.next_line().await.unwrap().unwrap().contains(said) {}
        let sent = tokio::process::Command::new("kill").args(["-TERM", &id]).status().await;
        assert!(sent.unwrap().success());
    }
    assert_eq!(child.wait().await.unwrap().code(), Some(128 + 15));
}

#[tokio::test]
#[ignore = "run by the test above, because a second signal ends the process"]
async fn draining_for_ever() {
    let drain = Drain::new();
    let mut signals = std::pin::pin!(drain.clone().on_signals());
    assert!(futures_util::poll!(signals.as_mut()).is_pending());
    writeln!(std::io::stdout(), "serving").unwrap();
    tokio::join!(signals, async {
        drain.draining().await;
        writeln!(std::io::stdout(), "draining").unwrap();
    })
    .0
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn reflection_lists_the_services_of_this_server_only() {
    use tonic::server::NamedService as _;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let served = Served::start(&Network::new(), "probe", ServerOptions::default(), Probe::default()).await;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(served.channel());
    let mut answers = client.server_reflection_info(tokio_stream::once(ask)).await.unwrap().into_inner();
    let ServerReflectionResponse { message_response, .. } = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = message_response else { panic!("no list") };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", Probe::NAME]);
}
