//! While nobody is READY for a moment, requests wait for a while instead of failing. Time is virtual: nothing here waits in earnest.

use armature_contracts::discovery::v1::Component;
use armature_frontend::config::Config;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::harness::{Harness, MODEL, Setup, instance, says};

async fn start() -> Harness {
    Harness::start(Setup { workers: vec![says("Hello")], config: Config::default(), ..Setup::default() })
        .await
}

fn ask() -> Value {
    json!({"model": MODEL, "prompt": "x"})
}

/// A request on its way, and what it becomes.
async fn sent(harness: &Harness) -> tokio::task::JoinHandle<Answer> {
    let mut client = harness.client().await;
    tokio::spawn(async move { client.post("/v1/completions", &ask()).await })
}

/// Waits until the frontend says that it holds `count` requests.
async fn held(harness: &Harness, count: usize) {
    let line = format!("armature_frontend_held_total {count}\n");
    while !harness.metrics().await.contains(&line) {
        tokio::task::yield_now().await;
    }
}

/// Waits until nobody serves the model any more.
async fn unlisted(harness: &Harness) {
    while harness.client().await.get("/v1/models").await.text().contains(MODEL) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_router_waits_for_the_next_one() {
    let harness = start().await;
    harness.discovery.remove(0xb1);
    unlisted(&harness).await;
    let answer = sent(&harness).await;
    held(&harness, 1).await;
    let router = harness.router().name;
    harness.discovery.put(instance(0xb1, Component::Router, router, Bytes::new()));
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_whom_routers_know_nobody_waits_for_a_worker() {
    let harness = start().await;
    let workers = std::mem::take(&mut *harness.router().workers.lock().unwrap());
    let answer = sent(&harness).await;
    held(&harness, 1).await;
    *harness.router().workers.lock().unwrap() = workers;
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_model_whose_last_worker_restarts_is_waited_for() {
    let harness = start().await;
    harness.discovery.remove(0xa1);
    unlisted(&harness).await;
    let answer = sent(&harness).await;
    held(&harness, 1).await;
    harness.discovery.put(instance(0xa1, Component::Worker, "worker-a1", harness.card.clone()));
    assert_eq!(answer.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn the_wait_has_an_end_with_the_answer_of_that_moment() {
    let harness = start().await;
    let start = tokio::time::Instant::now();
    harness.router().workers.lock().unwrap().clear();
    let answer = harness.client().await.post("/v1/completions", &ask()).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    let waited = start.elapsed().as_secs();
    assert!((10..12).contains(&waited), "{waited} s of virtual time");

    harness.discovery.remove(0xa1);
    unlisted(&harness).await;
    let answer = harness.client().await.post("/v1/completions", &ask()).await;
    assert_eq!(answer.status, 404, "{}", answer.text());
}

#[tokio::test(start_paused = true)]
async fn a_model_that_nobody_served_is_not_waited_for() {
    let harness = start().await;
    let answer =
        harness.client().await.post("/v1/completions", &json!({"model": "other", "prompt": "x"})).await;
    assert_eq!(answer.status, 404);
    assert!(harness.metrics().await.contains("armature_frontend_held_total 0\n"));
}
