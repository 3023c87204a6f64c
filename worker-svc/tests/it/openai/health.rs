//! An engine that dies, hangs or comes back: what it had is told as lost at once, and nobody is sent to it meanwhile.

use std::sync::atomic::Ordering;

use armature_contracts::discovery::v1::InstanceStatus;
use armature_contracts::error::{Fault, Reason};
use armature_contracts::worker::v1 as wire;
use armature_worker::config::EngineKind;
use armature_worker::domain::openai::dialect::Dialect;
use armature_worker::identity::Role;
use serde_json::json;

use super::scripted_engine::ScriptedEngine;
use super::{ask, pair, tokens};
use crate::harness::{Fleet, Node, wait_until};
use crate::registry::Registry;

/// A worker before an engine, watched often, and its registry.
async fn watched() -> (Fleet, ScriptedEngine, Node, Registry, impl Drop) {
    let engine = ScriptedEngine::start(Dialect::Vllm, true).await;
    let mut fleet = Fleet::external(EngineKind::Vllm);
    let (registry, serving) = Registry::serve(&fleet.network).await;
    let url = engine.url();
    let node = fleet
        .start(Role::Aggregated, |config| {
            config.openai.url = url;
            config.openai.watch_seconds = 0.02;
            config.openai.patience_seconds = 0.5;
        })
        .await;
    registry.registered(node.rank().instance).await;
    (fleet, engine, node, registry, serving)
}

#[tokio::test]
async fn an_engine_that_dies_loses_its_streams_at_once_and_rejoins_when_it_is_back() {
    let (_fleet, engine, node, registry, _serving) = watched().await;
    engine.endless();
    let mut stream = node.client.clone().generate(ask(&node, 400)).await.unwrap().into_inner();
    wait_until("the engine works", async || engine.running() == 1).await;
    let again = engine.die().await;
    let lost = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no last message"),
            Err(status) => break Fault::from_status(&status),
        }
    };
    assert!(matches!(lost.reason, Reason::WorkerLost | Reason::EngineFailed), "{lost}");
    let id = node.rank().instance;
    wait_until("nobody is sent to it", async || registry.status(id) == InstanceStatus::Starting as i32).await;
    let refused = Fault::from_status(&node.generate(ask(&node, 3)).await.unwrap_err());
    assert_eq!((refused.reason, refused.retryable), (Reason::EngineFailed, true), "{refused}");
    assert_eq!(node.metric("armature_worker_engine_up").await, 0.0);
    let engine = again().await;
    *engine.state.paced.lock().unwrap() = None;
    wait_until("it is back", async || registry.status(id) == InstanceStatus::Ready as i32).await;
    assert_eq!(node.generate(ask(&node, 3)).await.unwrap().tokens[0], tokens(3));
    assert_eq!(node.metric("armature_worker_engine_losses_total").await, 1.0);
}

#[tokio::test]
async fn a_port_that_takes_connections_and_never_answers_is_unhealthy() {
    let (_fleet, engine, node, registry, _serving) = watched().await;
    engine.endless();
    let mut stream = node.client.clone().generate(ask(&node, 400)).await.unwrap().into_inner();
    wait_until("the engine works", async || engine.running() == 1).await;
    engine.state.hangs.store(true, Ordering::SeqCst);
    let lost = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no last message"),
            Err(status) => break Fault::from_status(&status),
        }
    };
    assert_eq!(lost.reason, Reason::WorkerLost, "{lost}");
    let id = node.rank().instance;
    wait_until("nobody is sent to it", async || registry.status(id) == InstanceStatus::Starting as i32).await;
    wait_until("the engine works no more", async || engine.running() == 0).await;
    engine.state.hangs.store(false, Ordering::SeqCst);
    wait_until("it is back", async || registry.status(id) == InstanceStatus::Ready as i32).await;
}

#[tokio::test]
async fn an_engine_that_comes_back_with_another_model_does_not_take_its_place() {
    let (_fleet, engine, node, registry, _serving) = watched().await;
    let id = node.rank().instance;
    let again = engine.die().await;
    wait_until("nobody is sent to it", async || registry.status(id) == InstanceStatus::Starting as i32).await;
    let engine = again().await;
    let right = engine.state.models.lock().unwrap().clone();
    *engine.state.models.lock().unwrap() = json!({"data": [{"id": "another", "owned_by": "vllm"}]});
    wait_until("it is looked at", async || node.metric("armature_worker_engine_up").await == 0.0).await;
    let refused = Fault::from_status(&node.generate(ask(&node, 3)).await.unwrap_err());
    assert_eq!(refused.reason, Reason::EngineFailed);
    *engine.state.models.lock().unwrap() = right;
    wait_until("it is back", async || registry.status(id) == InstanceStatus::Ready as i32).await;
}

#[tokio::test]
async fn load_is_that_of_this_worker_and_of_others_in_the_engine() {
    let (_fleet, engine, node, _registry, _serving) = watched().await;
    *engine.state.metrics.lock().unwrap() = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n\
        vllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1\n"
        .into();
    let asked = wire::WatchStateRequest { min_interval: None };
    let mut reports = node.client.clone().watch_state(asked).await.unwrap().into_inner();
    loop {
        let report = reports.message().await.unwrap().unwrap();
        let rank = &report.ranks[0];
        if rank.running == 5 && rank.blocks_active == 100 {
            assert_eq!((rank.waiting, rank.blocks_free), (0, 100), "half of 200 blocks of 16 tokens");
            break;
        }
    }
}

#[tokio::test]
async fn a_worker_without_kv_events_says_that_it_has_none() {
    let (_fleet, _engine, node) = pair(Dialect::Vllm, true).await;
    let asked = wire::WatchKvRequest { dp_rank: 0, from_batch: 0 };
    let mut events = node.client.clone().watch_kv(asked).await.unwrap().into_inner();
    match events.message().await.unwrap().unwrap().event.unwrap() {
        wire::watch_kv_response::Event::Snapshot(chunk) => {
            assert_eq!((chunk.count, chunk.digest, chunk.chunks, chunk.block_size), (0, 0, 1, 16));
        }
        other @ wire::watch_kv_response::Event::Batch(_) => panic!("{other:?}"),
    }
}
