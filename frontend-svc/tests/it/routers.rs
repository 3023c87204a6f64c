//! Which router is asked.

use armature_contracts::ids::InstanceId;
use armature_frontend::domain::rendezvous::{Group, score};
use serde_json::{Value, json};

use crate::harness::{Harness, MODEL, Setup, says};

fn ask() -> Value {
    json!({"model": MODEL, "prompt": "x"})
}

/// Indices of the routers in the order of the model's group.
fn order(count: u64) -> Vec<usize> {
    let group = Group { namespace: "default", kv_identity: &[7; 32] };
    let mut ids: Vec<u64> = (0..count).collect();
    ids.sort_by_key(|i| std::cmp::Reverse(score(group, InstanceId(0xb1 + i))));
    ids.into_iter().map(|i| i as usize).collect()
}

#[tokio::test]
async fn the_first_of_the_group_is_asked() {
    let harness = Harness::start(Setup { routers: 3, ..Setup::default() }).await;
    for _ in 0..3 {
        assert_eq!(harness.client().await.post("/v1/completions", &ask()).await.status, 200);
    }
    let asked: Vec<usize> = harness.routers.iter().map(|router| router.asked().len()).collect();
    let mut expected = [0; 3];
    expected[order(3)[0]] = 3;
    assert_eq!(asked, expected);
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_passed_over_with_the_same_reservation() {
    let harness = Harness::start(Setup { routers: 2, workers: vec![says("x")], ..Setup::default() }).await;
    let order = order(2);
    let (first, second) = (&harness.routers[order[0]], &harness.routers[order[1]]);
    // Its process is stopped: the connection is there, and nothing comes back.
    let name = first.name;
    harness.discovery.put(hanging(&harness, name, 0xb1 + order[0] as u64).await);
    assert_eq!(harness.client().await.post("/v1/completions", &ask()).await.status, 200);
    assert_eq!(second.asked().len(), 1);
    assert_eq!(second.asked()[0].context.as_ref().unwrap().reservation.as_ref().unwrap().attempt, 1);
    assert!(harness.metrics().await.contains("armature_frontend_router_failovers_total 1"));
    // It is not asked again at once.
    assert_eq!(harness.client().await.post("/v1/completions", &ask()).await.status, 200);
    assert_eq!(second.asked().len(), 2);
}

/// A listener that takes connections and says nothing, in the place of a router.
async fn hanging(harness: &Harness, name: &str, id: u64) -> armature_contracts::discovery::v1::Instance {
    use armature_contracts::discovery::v1::Component;
    use armature_svc_kit::address::Address;
    let silent = format!("{name}-silent");
    let mut listener = harness.network.bind(&Address::mem(silent.clone())).await.unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await);
        }
    });
    crate::harness::instance(id, Component::Router, &silent, bytes::Bytes::new())
}

#[tokio::test]
async fn without_a_router_a_request_is_503_and_nothing_is_listed() {
    let harness = Harness::start(Setup { routers: 1, ..Setup::default() }).await;
    let metrics = harness.metrics().await;
    assert!(metrics.contains("armature_frontend"), "{metrics}");
    harness.discovery.remove(0xb1);
    loop {
        let list = harness.client().await.get("/v1/models").await.json();
        if list["data"].as_array().unwrap().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let answer = harness.client().await.post("/v1/completions", &ask()).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.headers.contains_key("retry-after"));
}
