//! Which models are there.

use armature_contracts::discovery::v1::Component;
use bytes::Bytes;
use prost::Message as _;
use serde_json::json;

use crate::harness::{Harness, MODEL, Setup, card, instance};

#[tokio::test]
async fn names_and_aliases_are_listed_once() {
    let harness = Harness::start(Setup::default()).await;
    harness.discovery.put(instance(0xa9, Component::Worker, "elsewhere", harness.card.clone()));
    let list = harness.client().await.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [MODEL, "tiny-alias"]);
    let one = harness.client().await.get("/v1/models/tiny-alias").await.json();
    assert_eq!((one["object"].as_str(), one["root"].as_str()), (Some("model"), Some(MODEL)));
    let body = json!({"model": "tiny-alias", "prompt": "x"});
    assert_eq!(harness.client().await.post("/v1/completions", &body).await.json()["model"], "tiny-alias");
}

#[tokio::test]
async fn a_broken_artifact_disables_only_its_model() {
    let harness = Harness::start(Setup::default()).await;
    let forged = Bytes::from_static(&[9; 32]);
    harness.discovery.forge(forged.clone(), "not what the digest says");
    let unparsable = harness.discovery.store("{}");
    for (id, name, tokenizer) in [(0xc1, "forged", forged), (0xc2, "unparsable", unparsable)] {
        let broken = armature_contracts::discovery::v1::ModelCard {
            tokenizer_digest: tokenizer,
            model_digest: Bytes::from_static(&[8; 32]),
            ..card(&harness.discovery, name)
        };
        let digest = harness.discovery.store(broken.encode_to_vec());
        harness.discovery.put(instance(id, Component::Worker, "elsewhere", digest));
    }
    for name in ["forged", "unparsable"] {
        let body = json!({"model": name, "prompt": "x"});
        loop {
            let answer = harness.client().await.post("/v1/completions", &body).await;
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            if message.contains("is not usable") {
                assert_eq!(answer.status, 503);
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(harness.client().await.get(&format!("/v1/models/{name}")).await.status, 404);
    }
    let body = json!({"model": MODEL, "prompt": "x"});
    assert_eq!(harness.client().await.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn ready_once_a_model_can_be_routed() {
    let harness = Harness::start(Setup { workers: Vec::new(), ..Setup::default() }).await;
    let mut admin = crate::client::Client::connect(&harness.network, "admin").await;
    assert_eq!(admin.get("/readyz").await.status, 503);
    harness.discovery.put(instance(0xa1, Component::Worker, "worker", harness.card.clone()));
    harness.listed(MODEL).await;
    while admin.get("/readyz").await.status != 200 {
        tokio::task::yield_now().await;
    }
    assert!(harness.running.ready.get());
    harness.discovery.remove(0xa1);
    while !harness.client().await.get("/v1/models").await.json()["data"].as_array().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(admin.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn an_artifact_that_comes_late_is_fetched_then() {
    let harness = Harness::start(Setup::default()).await;
    let card = armature_contracts::discovery::v1::ModelCard {
        model_digest: Bytes::from_static(&[6; 32]),
        ..card(&harness.discovery, "late")
    };
    let bytes = card.encode_to_vec();
    let digest = Bytes::copy_from_slice(blake3::hash(&bytes).as_bytes());
    harness.discovery.put(instance(0xc3, Component::Worker, "elsewhere", digest));
    // The view names the card before the store has it.
    assert_eq!(harness.client().await.get("/v1/models/late").await.status, 404);
    harness.discovery.store(bytes);
    harness.listed("late").await;
}
