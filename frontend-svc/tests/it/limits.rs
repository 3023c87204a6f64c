//! Overload, drain, deadlines.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_svc_kit::address::Address;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::client::Client;
use crate::fake_worker::Script;
use crate::harness::{Harness, MODEL, Setup, says};

fn ask(stream: bool) -> Value {
    json!({"model": MODEL, "prompt": "x", "stream": stream})
}

#[tokio::test]
async fn what_routers_say_becomes_429_and_503() {
    let harness = Harness::says("x").await;
    let busy = Fault::new(Reason::AllWorkersBusy, "all full").retry_after(Duration::from_millis(2300));
    for (fault, status, kind, wait) in [
        (busy, 429, "rate_limit_error", "3"),
        (Fault::new(Reason::NoWorkers, "none"), 503, "server_error", "1"),
    ] {
        *harness.router().refusal.lock().unwrap() = Some(fault);
        for stream in [false, true] {
            let answer = harness.client().await.post("/v1/completions", &ask(stream)).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.headers["retry-after"], wait);
            assert_eq!(answer.json()["error"]["type"], kind);
        }
    }
}

#[tokio::test]
async fn beyond_the_limit_is_429_at_once() {
    let script = Script { stalls_after: Some(1), ..says("Hello") };
    let mut setup = Setup { workers: vec![script], ..Setup::default() };
    setup.config.max_in_flight = 1;
    let harness = Harness::start(setup).await;
    let mut first = harness.client().await;
    let mut running = first.open(Client::request("/v1/completions", ask(true).to_string())).await;
    running.frame().await.unwrap().unwrap();
    let second = harness.client().await.post("/v1/completions", &ask(false)).await;
    assert_eq!(second.status, 429);
    assert_eq!(second.headers["retry-after"], "1");
    assert!(second.json()["error"]["message"].as_str().unwrap().contains("limit of 1"));
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_refuses_the_rest() {
    let script = Script { stalls_after: Some(1), ..says("Hello") };
    let harness = Harness::start(Setup { workers: vec![script, says("Hello")], ..Setup::default() }).await;
    let mut first = harness.client().await;
    let mut idle = harness.client().await;
    let mut running = first.open(Client::request("/v1/completions", ask(true).to_string())).await;
    running.frame().await.unwrap().unwrap();
    harness.drain.begin();
    harness.drain.refusing().await;
    assert_eq!(idle.post("/v1/completions", &ask(false)).await.status, 503);
    // The worker goes, the request goes on: draining does not end migrations.
    harness.workers[0].dead.cancel();
    let rest = running.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "{rest:?}");
    drop((first, idle));
    harness.running.finished().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_outlasts_the_drain_ends_with_an_error() {
    let script = Script { stalls_after: Some(1), ..says("Hello") };
    let mut setup = Setup { workers: vec![script], ..Setup::default() };
    setup.config.drain_seconds = 5;
    let harness = Harness::start(setup).await;
    let mut client = harness.client().await;
    let mut running = client.open(Client::request("/v1/completions", ask(true).to_string())).await;
    running.frame().await.unwrap().unwrap();
    harness.drain.begin();
    let rest = running.collect().await.unwrap().to_bytes();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("\"error\"") && rest.contains("shuts down"), "{rest}");
    drop(client);
    harness.running.finished().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silence_between_tokens_ends_a_stream_with_an_error() {
    let script = Script { stalls_after: Some(2), ..says("Hello") };
    let harness = Harness::start(Setup { workers: vec![script], ..Setup::default() }).await;
    let answer = harness.client().await.post("/v1/completions", &ask(true)).await;
    assert_eq!(answer.streamed(0), "He");
    assert_eq!(answer.events().last().unwrap()["error"]["code"], "deadline_exceeded");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_the_caller_is_kept() {
    let script = Script { stalls_after: Some(0), ..says("Hello") };
    let harness = Harness::start(Setup { workers: vec![script], ..Setup::default() }).await;
    let mut request = Client::request("/v1/completions", ask(false).to_string());
    request.headers_mut().insert("grpc-timeout", "3S".parse().unwrap());
    let answer = harness.client().await.send(request).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].clone()),
        (504, json!("deadline_exceeded"))
    );
}

#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_end_on_every_port() {
    let harness = Harness::says("x").await;
    for port in ["http", "grpc", "admin"] {
        let mut silent = harness.network.connect(&Address::mem(port)).await.unwrap();
        let ended = timeout(Duration::from_secs(600), silent.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "{port} keeps a silent connection");
    }
}
