//! Several models side by side, and prefixes that are reused within each.

use armature_contracts::inference::v1 as wire;
use armature_contracts::inference::v1::inference_service_client::InferenceServiceClient;
use armature_e2e::suite::Suite;
use armature_tiny_gguf::Spec;
use serde_json::{Value, json};
use tokio_stream::StreamExt;

/// 72 tokens and more in any of the vocabularies here.
const PROMPT: &str =
    "0123456789 abcdefghij 0123456789 abcdefghij 0123456789 abcdefghij 0123456789 abcdefghij.";

/// A greedy completion: text, prompt tokens, cached tokens.
async fn complete(suite: &Suite, model: &str, prompt: &Value, salt: &str) -> (String, u64, u64) {
    let body = json!({
        "model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "cache_salt": salt,
    });
    let answer = suite.client.post("/v1/completions", &body).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["model"], model);
    let usage = &answer.body["usage"];
    let count = |value: &Value| value.as_u64().unwrap();
    let text = answer.body["choices"][0]["text"].as_str().unwrap().to_owned();
    (text, count(&usage["prompt_tokens"]), count(&usage["prompt_tokens_details"]["cached_tokens"]))
}

async fn usage(suite: &Suite, request: wire::GenerateRequest) -> wire::Usage {
    let mut client = InferenceServiceClient::connect(format!("http://{}", suite.grpc)).await.unwrap();
    let mut answer = client.generate(request).await.unwrap().into_inner();
    while let Some(message) = answer.next().await {
        if let Some(wire::generate_response::Event::Finished(finished)) = message.unwrap().event {
            return finished.usage.unwrap();
        }
    }
    panic!("an answer without an end");
}

#[tokio::test]
async fn two_models_answer_each_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(format!("{name}.gguf")).display().to_string();
    for (name, seed) in [("first", 1), ("second", 2)] {
        armature_tiny_gguf::write(path(name).as_ref(), &Spec { seed, ..Spec::default() }).unwrap();
    }
    let suite =
        Suite::start(&["--model", &path("first"), "--model", &path("second"), "--kv-blocks", "128"]).await;

    let listed = suite.client.get("/v1/models").await.unwrap().body;
    let mut names: Vec<_> =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["first", "second"]);

    let prompt = json!(PROMPT);
    let (first, tokens, cached) = complete(&suite, "first", &prompt, "").await;
    assert_eq!(cached, 0);
    // Equal tokens under an equal salt: only the model differs, and nothing may be found.
    let (second, same_tokens, cached) = complete(&suite, "second", &prompt, "").await;
    assert_eq!((same_tokens, cached), (tokens, 0));
    assert_ne!(first, second);
    for _ in 0..3 {
        for (model, expected) in [("first", &first), ("second", &second)] {
            // A worker that is still busy by its last report may lose to an idle one: locality against load.
            suite.idle().await;
            let (text, _, cached) = complete(&suite, model, &prompt, "").await;
            assert_eq!(&text, expected);
            assert_eq!(cached, (tokens - 1) / 16 * 16, "{model} finds its own prefix");
        }
    }
    assert_eq!(complete(&suite, "first", &prompt, "another").await, (first, tokens, 0));

    let unknown =
        suite.client.post("/v1/completions", &json!({"model": "third", "prompt": "x"})).await.unwrap();
    assert_eq!((unknown.status, &unknown.body["error"]["code"]), (404, &json!("model_not_found")));
    suite.idle().await;
    for worker in suite.workers().await {
        assert!(["first", "second"].contains(&worker.served_name.as_str()), "{worker:?}");
    }
}

#[tokio::test]
async fn a_shared_prefix_is_computed_once() {
    let suite = Suite::sim().await;
    let shared: Vec<u32> = (0..1000).map(|i| 32 + i * 7 % 90).collect();
    let with_tail = |tail: u32| json!(shared.iter().copied().chain([tail; 40]).collect::<Vec<u32>>());
    let (_, tokens, cached) = complete(&suite, "sim", &with_tail(65), "").await;
    assert_eq!((tokens, cached), (1040, 0));
    for tail in [66, 67, 68] {
        let (_, tokens, cached) = complete(&suite, "sim", &with_tail(tail), "").await;
        // 62 full blocks of 16 lie within the 1,000 tokens that are shared; the rest is this request's own.
        assert_eq!((tokens, cached), (1040, 992), "tail {tail}");
    }
    // The account by phase, which only gRPC tells: what was not found was computed here, or elsewhere and received.
    let token_ids = shared.iter().copied().chain([69; 40]).collect();
    let request = wire::GenerateRequest {
        model: "sim".into(),
        input: Some(wire::generate_request::Input::TokenIds(wire::TokenIds { token_ids })),
        stop: Some(wire::StopConditions { max_tokens: Some(4), ..Default::default() }),
        ..Default::default()
    };
    let usage = usage(&suite, request).await;
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (1040, 992));
    assert_eq!(usage.computed_tokens + usage.transferred_tokens, 48, "{usage:?}");
    let (_, _, cached) = complete(&suite, "sim", &with_tail(65), "private").await;
    assert_eq!(cached, 0, "another salt shares nothing");
    suite.idle().await;
}
