//! A client that goes away stops all work for it.

use http_body_util::BodyExt as _;
use serde_json::json;

use crate::client::Client;
use crate::fake_worker::Script;
use crate::harness::{Harness, MODEL, Setup, says};

async fn stalling(after: usize) -> Harness {
    let script = Script { stalls_after: Some(after), ..says("Hello") };
    Harness::start(Setup { workers: vec![script], ..Setup::default() }).await
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let harness = stalling(2).await;
    let mut client = harness.client().await;
    let body = json!({"model": MODEL, "prompt": "x", "stream": true}).to_string();
    let mut answer = client.open(Client::request("/v1/completions", body)).await;
    let first = answer.frame().await.unwrap().unwrap();
    assert!(first.into_data().unwrap().starts_with(b"data: "));
    assert_eq!(*harness.workers[0].running.borrow(), 1);
    drop(answer);
    drop(client);
    gone(&harness).await;
}

#[tokio::test]
async fn before_the_first_token() {
    let harness = stalling(0).await;
    let mut client = harness.client().await;
    let body = json!({"model": MODEL, "prompt": "x"}).to_string();
    let mut running = harness.workers[0].running.subscribe();
    tokio::select! {
        _ = client.open(Client::request("/v1/completions", body)) => panic!("no token was sent"),
        _ = running.wait_for(|running| *running == 1) => {}
    }
    drop(client);
    gone(&harness).await;
}

#[tokio::test]
async fn while_the_router_decides() {
    let harness = stalling(0).await;
    *harness.router().silent.lock().unwrap() = true;
    let mut client = harness.client().await;
    let body = json!({"model": MODEL, "prompt": "x"}).to_string();
    let mut asked = harness.router().asked.subscribe();
    tokio::select! {
        _ = client.open(Client::request("/v1/completions", body)) => panic!("nobody decided"),
        _ = asked.wait_for(|asked| asked.len() == 1) => {}
    }
    drop(client);
    released(&harness).await;
    assert!(harness.workers[0].asked().is_empty());
}

#[tokio::test]
async fn of_one_choice_when_its_text_is_complete() {
    // Choice i says "iHello"; only that of choice 1 has the stop string, and the others never end.
    let script = Script { stalls_after: Some(6), numbered: true, ..says("Hello") };
    let harness = Harness::start(Setup { workers: vec![script], ..Setup::default() }).await;
    let mut client = harness.client().await;
    let body = json!({"model": MODEL, "prompt": "x", "n": 3, "stop": ["1H"], "stream": true}).to_string();
    let answer = client.open(Client::request("/v1/completions", body)).await;
    let worker = &harness.workers[0];
    worker.ended.subscribe().wait_for(|ended| !ended.is_empty()).await.unwrap();
    let ended = worker.ended.borrow().clone();
    assert_eq!((ended.len(), &ended[0].choices), (1, &vec![1]));
    let asked = worker.asked().remove(0);
    assert_eq!(ended[0].reservation, asked.context.unwrap().reservation);
    assert_eq!(*worker.running.borrow(), 1, "the others go on");
    drop(answer);
    drop(client);
    gone(&harness).await;
}

async fn gone(harness: &Harness) {
    harness.workers[0].running.subscribe().wait_for(|running| *running == 0).await.unwrap();
    released(harness).await;
    let metrics = harness.metrics().await;
    assert!(metrics.contains("armature_frontend_in_flight 0"), "{metrics}");
    assert!(metrics.contains("armature_frontend_disconnects_total 1"), "{metrics}");
}

async fn released(harness: &Harness) {
    let asked = harness.router().asked();
    let key = asked[0].context.as_ref().unwrap().reservation.clone().unwrap();
    harness.router().released.subscribe().wait_for(|keys| keys.contains(&key)).await.unwrap();
}
