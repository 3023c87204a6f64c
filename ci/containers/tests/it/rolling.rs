//! An upgrade without one: every container stopped and started in turn, the next when the last one is healthy.

use armature_containers::fleet::Fleet;
use armature_containers::load::Load;
use armature_containers::views;
use armature_e2e::wait_until;
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

#[tokio::test]
async fn workers_routers_and_discovery_in_turn_fail_no_request() {
    let fleet = Fleet::sim().await;
    views::agree(&fleet, 4).await;
    let load = Load::start(&fleet.client, fleet.model).await;
    for service in ["sim-decode", "sim-prefill", "router", "discovery"] {
        for container in fleet.containers(service).await {
            container.stop().await;
            let code = container.exit_code().await;
            assert_eq!(code, 0, "{}: {}", container.name().await, container.logs().await);
            load.streams(6).await;
            container.start().await;
            container.healthy().await;
        }
    }
    load.streams(12).await;
    load.finish().await;
    views::agree(&fleet, 4).await;
}

#[tokio::test]
async fn a_frontend_that_stops_finishes_its_streams() {
    let fleet = Fleet::sim().await;
    let frontend = fleet.only("frontend").await;
    let body = json!({"model": fleet.model, "prompt": "to the end", "max_tokens": 600, "ignore_eos": true,
        "stream": true});
    let (status, _, mut events) = fleet.client.stream("/v1/completions", &body).await.unwrap();
    assert_eq!(status, 200);
    events.next().await.unwrap();
    let read = async {
        let mut last = Value::Null;
        let mut tokens = 0;
        while let Some(event) = events.next().await {
            assert!(event.get("broken").is_none() && event.get("error").is_none(), "{event}");
            tokens += 1;
            last = event;
        }
        (tokens, last["choices"][0]["finish_reason"].clone())
    };
    let ((tokens, reason), ()) = tokio::join!(read, frontend.stop());
    assert!(tokens > 100, "the stream was over before the frontend stopped");
    assert_eq!(reason, "length");
    assert_eq!(frontend.exit_code().await, 0, "{}", frontend.logs().await);

    frontend.start().await;
    wait_until("it serves again", async || {
        let answer = fleet
            .client
            .post("/v1/completions", &json!({"model": "sim", "prompt": "x", "max_tokens": 1}))
            .await;
        answer.is_ok_and(|answer| answer.status == 200)
    })
    .await;
}

#[tokio::test]
async fn while_the_only_decode_worker_restarts_requests_wait() {
    let fleet = Fleet::sim().await;
    let [kept, other] = <[_; 2]>::try_from(fleet.containers("sim-decode").await).unwrap();
    other.stop().await;
    kept.stop().await;
    let client = fleet.client.clone();
    let asked = tokio::spawn(async move {
        client.post("/v1/completions", &json!({"model": "sim", "prompt": "x", "max_tokens": 4})).await
    });
    kept.start().await;
    let answer = asked.await.unwrap().unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}
