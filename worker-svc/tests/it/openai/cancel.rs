//! Whoever goes away stops its work in the engine.

use armature_contracts::inference::v1::FinishReason;
use armature_contracts::worker::v1 as wire;
use armature_worker::config::EngineKind;
use armature_worker::domain::openai::dialect::Dialect;
use armature_worker::identity::Role;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use wire::generate_response::Event;

use super::scripted_engine::{Act, ScriptedEngine};
use super::{ask, pair};
use crate::harness::{Fleet, wait_until};

#[tokio::test]
async fn a_client_that_goes_away_closes_the_connection_to_the_engine_at_any_moment() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let pace = engine.endless();
    for tokens_before in [None, Some(0), Some(3)] {
        if tokens_before.is_none() {
            // Not even the head of an answer has come.
            engine.script(&[Act::Hang]);
        }
        let mut stream = node.client.clone().generate(ask(&node, 400)).await.unwrap().into_inner();
        wait_until("the engine works", async || engine.running() == 1).await;
        for _ in 0..tokens_before.unwrap_or(0) {
            pace.notify_one();
            while !matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Delta(_))) {}
        }
        drop(stream);
        wait_until("the engine works no more", async || engine.running() == 0).await;
        node.quiet().await;
    }
}

#[tokio::test]
async fn a_choice_that_nobody_wants_any_more_ends_alone() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let pace = engine.endless();
    let mut asked = ask(&node, 400);
    asked.choices = (0..3).map(|index| wire::ChoiceStart { index, generated_token_ids: vec![] }).collect();
    let reservation = asked.context.as_ref().unwrap().reservation.clone();
    let mut stream = node.client.clone().generate(asked).await.unwrap().into_inner();
    wait_until("three connections", async || engine.running() == 3).await;
    let end = wire::EndChoicesRequest { reservation, choices: vec![1] };
    node.client.clone().end_choices(end).await.unwrap();
    wait_until("two connections", async || engine.running() == 2).await;
    pace.notify_waiters();
    let mut ended = None;
    while ended.is_none() {
        if let Some(Event::Delta(delta)) = stream.message().await.unwrap().unwrap().event
            && delta.finish_reason != 0
        {
            ended = Some((delta.choice, delta.finish_reason));
        }
    }
    assert_eq!(ended, Some((1, FinishReason::Cancelled as i32)));
    assert_eq!(engine.running(), 2);
}

#[tokio::test]
async fn a_drain_hands_what_is_running_to_others() {
    let engine = ScriptedEngine::start(Dialect::Vllm, true).await;
    engine.endless();
    let mut fleet = Fleet::external(EngineKind::Vllm);
    let url = engine.url();
    let node = fleet
        .start(Role::Aggregated, |config| {
            config.openai.url = url;
            config.drain_seconds = 0.0;
        })
        .await;
    let mut stream = node.client.clone().generate(ask(&node, 400)).await.unwrap().into_inner();
    wait_until("the engine works", async || engine.running() == 1).await;
    let ended = tokio::spawn(node.running.finished());
    node.drain.begin();
    let mut last = 0;
    while let Some(answer) = stream.message().await.unwrap() {
        if let Some(Event::Delta(delta)) = answer.event {
            last = delta.finish_reason;
        }
    }
    assert_eq!(last, FinishReason::Migrate as i32);
    wait_until("the engine works no more", async || engine.running() == 0).await;
    ended.await.unwrap().unwrap();
}

/// Seeded: a thousand requests, each left at a random moment by its client.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_random_cancels_leave_no_running_request_in_the_engine() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let pace = engine.endless();
    let ticking = tokio::spawn(async move {
        loop {
            pace.notify_waiters();
            tokio::task::yield_now().await;
        }
    });
    let mut random = StdRng::seed_from_u64(7);
    let mut streams = JoinSet::new();
    let mut left = 0;
    for _ in 0..1000 {
        let (messages, n) = (random.random_range(0..6), random.random_range(1..3));
        let mut asked = ask(&node, 400);
        asked.choices =
            (0..n).map(|index| wire::ChoiceStart { index, generated_token_ids: vec![] }).collect();
        let mut client = node.client.clone();
        streams.spawn(async move {
            let Ok(stream) = client.generate(asked).await else { return };
            let mut stream = stream.into_inner();
            for _ in 0..messages {
                if stream.message().await.ok().flatten().is_none() {
                    return;
                }
            }
        });
        if streams.len() >= 64 {
            streams.join_next().await.unwrap().unwrap();
            left += 1;
        }
    }
    while let Some(ended) = streams.join_next().await {
        ended.unwrap();
        left += 1;
    }
    ticking.abort();
    assert_eq!(left, 1000);
    wait_until("the engine works no more", async || engine.running() == 0).await;
    node.quiet().await;
    assert!(engine.state.asked.lock().unwrap().len() > 500, "most requests came as far as the engine");
}
