//! What a client is told of what an engine generates.

use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1::FinishReason;
use armature_contracts::worker::v1 as wire;
use armature_worker::domain::openai::dialect::Dialect;
use serde_json::json;
use wire::generate_response::Event;

use super::scripted_engine::{Act, tiny_tokenizer, token};
use super::{ask, pair, tokens};
use crate::harness::{prompt, wait_until};

#[tokio::test]
async fn tokens_come_as_the_engine_tells_them_and_usage_as_it_counts() {
    for dialect in [Dialect::Vllm, Dialect::Sglang, Dialect::LlamaCpp, Dialect::OpenAi] {
        let (_fleet, engine, node) = pair(dialect, true).await;
        let output = node.generate(ask(&node, 5)).await.unwrap();
        assert_eq!(output.tokens[0], tokens(5), "{dialect}");
        assert_eq!(output.finish[0], FinishReason::Length as i32);
        let usage = &output.usage;
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (20, 5));
        assert_eq!((usage.cached_tokens, usage.computed_tokens), (16, 4));
        let sent = engine.state.asked.lock().unwrap()[0]["prompt"].clone();
        assert_eq!(sent, json!(prompt(20, 1)), "{dialect}: the very ids");
        assert_eq!(node.metric("armature_worker_tokens_generated_total").await, 5.0);
        assert!(!node.metrics().await.contains("engine_disagreements_total{"), "{dialect}");
        node.quiet().await;
    }
}

#[tokio::test]
async fn an_engine_that_knows_only_text_is_asked_by_text_and_its_text_is_told_as_tokens() {
    let (_fleet, engine, node) = pair(Dialect::OpenAi, false).await;
    let mut asked = ask(&node, 6);
    // A begin token, then "a b": the engine puts its own begin token before the text.
    asked.prompt_token_ids = vec![1, 3 + 97, 3 + 32, 3 + 98];
    asked.blocks = Some(wire::BlockCheck { first: None, last: None, ..asked.blocks.unwrap() });
    engine.script(&[
        Act::Head,
        Act::Event(json!({"choices": [{"text": "hello w"}]})),
        Act::Event(json!({"choices": [{"text": "\u{e9}"}]})),
        Act::Event(json!({"choices": [{"text": " the", "finish_reason": "stop"}]})),
        Act::Done,
    ]);
    let output = node.generate(asked).await.unwrap();
    assert_eq!(engine.state.asked.lock().unwrap()[0]["prompt"], "a b");
    assert_eq!(tiny_tokenizer().decode(&output.tokens[0], false).unwrap(), "hello w\u{e9} the");
    assert_eq!(output.finish[0], FinishReason::Stop as i32);
}

#[tokio::test]
async fn a_parameter_that_the_engine_does_not_have_is_refused_by_its_name() {
    let (_fleet, engine, node) = pair(Dialect::OpenAi, false).await;
    let mut asked = ask(&node, 4);
    asked.sampling.as_mut().unwrap().top_k = Some(40);
    let fault = Fault::from_status(&node.generate(asked).await.unwrap_err());
    assert_eq!(fault.reason, Reason::Unsupported);
    assert_eq!(fault.violations[0].0, "top_k");
    let mut salted = ask(&node, 4);
    salted.context.as_mut().unwrap().cache_salt = "s".into();
    let root = node.identity.root(&[], "", "s");
    let key = armature_worker::identity::root_key(&root);
    let hashes = armature_kv_hash::sequence_hashes(key, 16, &salted.prompt_token_ids);
    salted.blocks = Some(wire::BlockCheck {
        hash_scheme: armature_kv_hash::HASH_SCHEME.into(),
        block_size: 16,
        first: hashes.first().copied(),
        last: hashes.last().copied(),
    });
    let fault = Fault::from_status(&node.generate(salted).await.unwrap_err());
    assert_eq!((fault.reason, fault.violations[0].0.as_str()), (Reason::Unsupported, "cache_salt"));
    assert!(engine.state.asked.lock().unwrap().is_empty(), "the engine was not asked");
    assert!(node.metrics().await.contains("refused_total{reason=\"unsupported\"} 2"));
}

#[tokio::test]
async fn a_migrated_choice_goes_on_behind_its_history() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let mut asked = ask(&node, 8);
    asked.choices = vec![wire::ChoiceStart { index: 2, generated_token_ids: vec![100, 101, 102] }];
    let mut stream = node.client.clone().generate(asked).await.unwrap().into_inner();
    let (mut positions, mut generated) = (Vec::new(), Vec::new());
    while let Some(answer) = stream.message().await.unwrap() {
        if let Some(Event::Delta(delta)) = answer.event {
            assert_eq!(delta.choice, 2);
            positions.push(delta.position);
            generated.extend(delta.tokens.iter().map(|token| token.token_id));
        }
    }
    assert_eq!((positions, generated), ((3..8).collect::<Vec<u32>>(), tokens(5)));
    let asked = engine.state.asked.lock().unwrap();
    let history: Vec<u32> = prompt(20, 1).into_iter().chain([100, 101, 102]).collect();
    assert_eq!((&asked[0]["prompt"], &asked[0]["max_tokens"]), (&json!(history), &json!(5)));
}

#[tokio::test]
async fn choices_are_connections_of_their_own_with_seeds_of_their_own() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    let mut asked = ask(&node, 3);
    asked.choices = (0..3).map(|index| wire::ChoiceStart { index, generated_token_ids: vec![] }).collect();
    let output = node.generate(asked.clone()).await.unwrap();
    assert_eq!(output.tokens, vec![tokens(3); 3]);
    assert_eq!((output.usage.prompt_tokens, output.usage.completion_tokens), (20, 9));
    let seeds = |from: usize| {
        let bodies = engine.state.asked.lock().unwrap();
        let mut seeds: Vec<u64> = bodies[from..].iter().map(|body| body["seed"].as_u64().unwrap()).collect();
        seeds.sort_unstable();
        seeds
    };
    let first = seeds(0);
    assert!(first.len() == 3 && first[0] != first[1] && first[1] != first[2]);
    asked.context.as_mut().unwrap().reservation.as_mut().unwrap().attempt = 2;
    node.generate(asked).await.unwrap();
    assert_eq!(seeds(3), first, "the same request has the same seeds");
}

#[tokio::test]
async fn a_stop_token_that_the_engine_is_not_told_ends_the_choice_here() {
    let (_fleet, engine, node) = pair(Dialect::LlamaCpp, true).await;
    let mut asked = ask(&node, 20);
    asked.stop.as_mut().unwrap().stop_token_ids = vec![token(4)];
    let output = node.generate(asked).await.unwrap();
    assert_eq!(output.tokens[0], tokens(5));
    assert_eq!(output.finish[0], FinishReason::Stop as i32);
    wait_until("the engine has heard of it", async || engine.running() == 0).await;
}

#[tokio::test]
async fn an_end_token_that_comes_before_the_engines_account_is_the_last_one() {
    let (_fleet, engine, node) = pair(Dialect::LlamaCpp, true).await;
    engine.script(&[
        Act::Head,
        Act::Event(json!({"content": "a", "tokens": [100], "stop": false})),
        Act::Event(json!({"content": "", "tokens": [2], "stop": false})),
        Act::Event(
            json!({"content": "", "tokens": [], "stop": true, "stop_type": "eos", "tokens_predicted": 2,
            "tokens_evaluated": 20, "timings": {"cache_n": 16}}),
        ),
    ]);
    let output = node.generate(ask(&node, 9)).await.unwrap();
    assert_eq!((&output.tokens[0], output.finish[0]), (&vec![100, 2], FinishReason::Stop as i32));
    assert_eq!((output.usage.cached_tokens, output.usage.completion_tokens), (16, 2));
}

#[tokio::test]
async fn log_probabilities_are_told_by_id() {
    let (_fleet, engine, node) = pair(Dialect::Vllm, true).await;
    engine.script(&[
        Act::Head,
        Act::Event(json!({"choices": [{"text": "a", "token_ids": [100], "finish_reason": "length", "logprobs":
            {"tokens": ["token_id:100"], "token_logprobs": [-0.5], "top_logprobs": [{"token_id:100": -0.5, "token_id:7": -2.0}]}}]})),
        Act::Done,
    ]);
    let mut asked = ask(&node, 1);
    asked.sampling.as_mut().unwrap().logprobs = Some(2);
    let mut stream = node.client.clone().generate(asked).await.unwrap().into_inner();
    let mut told = Vec::new();
    while let Some(answer) = stream.message().await.unwrap() {
        if let Some(Event::Delta(delta)) = answer.event {
            told.extend(delta.tokens);
        }
    }
    assert_eq!((told[0].token_id, told[0].logprob), (100, Some(-0.5)));
    let top: Vec<(u32, f32)> = told[0].top.iter().map(|top| (top.token_id, top.logprob)).collect();
    assert_eq!(top, [(100, -0.5), (7, -2.0)]);
}
