//! What is found out about an engine, and how it is said what cannot be.

use armature_svc_kit::drain::Drain;
use armature_worker::app::{Parts, start};
use armature_worker::config::{Config, EngineKind};
use armature_worker::domain::openai::dialect::Dialect;
use armature_worker::identity::Role;
use serde_json::json;

use super::scripted_engine::ScriptedEngine;
use super::{ask, before, tokens};
use crate::harness::Fleet;

/// What a worker that cannot start says.
async fn refusal(fleet: &Fleet, change: impl FnOnce(&mut Config)) -> String {
    let mut config = fleet.config();
    change(&mut config);
    let parts = Parts {
        network: fleet.network.clone(),
        registry: Default::default(),
        weights: Default::default(),
        drain: Drain::new(),
    };
    match start(config, parts).await {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it starts"),
    }
}

#[tokio::test]
async fn model_context_and_end_tokens_are_found() {
    let engine = ScriptedEngine::start(Dialect::LlamaCpp, true).await;
    let mut fleet = Fleet::external(EngineKind::OpenAi);
    let node = before(&mut fleet, &engine).await;
    let spec = &node.identity.spec;
    assert_eq!((spec.name.as_str(), spec.context_length, spec.vocab_size), ("scripted", 512, 300));
    assert_eq!((spec.eos_token_ids.as_slice(), spec.bos_token_id), (&[2][..], Some(1)));
    let other = before(&mut fleet, &engine).await;
    assert_eq!(other.identity.spec.model_digest, spec.model_digest, "they may replace each other");
    assert_ne!(
        other.identity.compat_key, node.identity.compat_key,
        "and are never believed to compute the same bits"
    );
}

#[tokio::test]
async fn what_is_missing_is_named_with_what_to_do() {
    let engine = ScriptedEngine::start(Dialect::Vllm, true).await;
    let fleet = Fleet::external(EngineKind::OpenAi);
    let url = engine.url();
    let said = refusal(&fleet, |config| {
        config.openai.url.clone_from(&url);
        config.openai.tokenizer = None;
    })
    .await;
    assert!(said.contains("openai.tokenizer") && said.contains("--backend-tokenizer"), "{said}");
    let said = refusal(&fleet, |config| {
        config.openai.url.clone_from(&url);
        config.openai.tokenizer = Some("/nowhere/tokenizer.json".into());
    })
    .await;
    assert!(said.contains("/nowhere/tokenizer.json"), "{said}");
    *engine.state.models.lock().unwrap() = json!({"data": [{"id": "a"}, {"id": "b"}]});
    let said = refusal(&fleet, |config| config.openai.url.clone_from(&url)).await;
    assert!(said.contains("openai.model"), "{said}");
    drop(engine);
    let said = refusal(&fleet, |config| {
        config.openai.url.clone_from(&url);
        config.openai.start_seconds = 0.0;
    })
    .await;
    assert!(said.contains(&url) && said.contains("is it running"), "{said}");
}

#[tokio::test]
async fn an_engine_that_is_starting_is_waited_for() {
    let engine = ScriptedEngine::start(Dialect::Vllm, true).await;
    let (url, again) = (engine.url(), engine.die().await);
    let mut fleet = Fleet::external(EngineKind::Vllm);
    let starting = fleet.start(Role::Aggregated, |config| config.openai.url = url);
    let (node, _engine) = tokio::join!(starting, again());
    assert_eq!(node.generate(ask(&node, 3)).await.unwrap().tokens[0], tokens(3));
}
