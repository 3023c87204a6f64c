//! The bytes of answers, as OpenAI's documentation has them: what a client reads that is not one of its SDKs.

use std::collections::BTreeSet;

use armature_e2e::suite::Suite;
use serde_json::{Value, json};

/// The events of a stream, framing checked: each `data: JSON` and a blank line, the last one `[DONE]`.
async fn events(suite: &Suite, path: &str, body: &Value) -> Vec<Value> {
    let request = reqwest::Client::new().post(format!("{}{path}", suite.client.base()));
    let answer =
        request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    assert_eq!(answer.headers()["cache-control"], "no-cache");
    let text = String::from_utf8(answer.bytes().await.unwrap().to_vec()).unwrap();
    let frames = text.strip_suffix("data: [DONE]\n\n").expect("a stream ends with [DONE]");
    let frames = frames.strip_suffix("\n\n").unwrap().split("\n\n");
    frames.map(|frame| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

/// What all events of one stream have in common.
fn one_answer(events: &[Value], object: &str) {
    let heads: BTreeSet<String> = events
        .iter()
        .map(|event| {
            assert_eq!((&event["object"], &event["model"]), (&json!(object), &json!("sim")), "{event}");
            assert!(event["id"].is_string() && event["created"].as_i64().unwrap() > 1_700_000_000, "{event}");
            assert!(event["system_fingerprint"].as_str().unwrap().starts_with("fp_"), "{event}");
            json!([event["id"], event["created"], event["system_fingerprint"]]).to_string()
        })
        .collect();
    assert_eq!(heads.len(), 1, "{heads:?}");
}

fn names(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_chat_stream() {
    let suite = Suite::sim().await;
    let mut body = json!({
        "model": "sim", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 9, "seed": 1, "stream": true, "logprobs": true, "top_logprobs": 2,
        "stream_options": {"include_usage": true},
    });
    let events = events(&suite, "/v1/chat/completions", &body).await;
    one_answer(&events, "chat.completion.chunk");
    let [first, middle @ .., usage] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    assert!(
        events.iter().all(|event| event.as_object().unwrap().contains_key("usage")),
        "usage is there, null or not"
    );
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 9);
    assert_eq!(names(&usage["usage"]["prompt_tokens_details"]), BTreeSet::from(["cached_tokens"]));
    let choices =
        || std::iter::once(first).chain(middle).flat_map(|event| event["choices"].as_array().unwrap());
    let reasons: Vec<&Value> = choices().map(|choice| &choice["finish_reason"]).collect();
    assert_eq!(reasons.last(), Some(&&json!("length")));
    assert!(reasons[..reasons.len() - 1].iter().all(|reason| reason.is_null()), "{reasons:?}");
    let streamed: String = choices().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
    let scored: Vec<&Value> =
        choices().filter_map(|choice| choice["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(scored.len(), 9);
    for token in &scored {
        assert_eq!(names(token), BTreeSet::from(["bytes", "logprob", "token", "top_logprobs"]), "{token}");
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
    let spelled: Vec<u8> = scored
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|it| it.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(spelled, streamed.as_bytes());

    body["stream"] = json!(false);
    body.as_object_mut().unwrap().remove("stream_options");
    let whole = suite.client.post("/v1/chat/completions", &body).await.unwrap();
    one_answer(std::slice::from_ref(&whole.body), "chat.completion");
    let choice = &whole.body["choices"][0];
    assert_eq!(names(choice), BTreeSet::from(["finish_reason", "index", "logprobs", "message"]));
    assert_eq!(choice["message"], json!({"role": "assistant", "content": streamed, "refusal": null}));
    let all: Vec<&Value> = choice["logprobs"]["content"].as_array().unwrap().iter().collect();
    assert_eq!(all, scored, "a stream has the logprobs of the whole");
    suite.idle().await;
}

#[tokio::test]
async fn a_completion_stream() {
    let suite = Suite::sim().await;
    let mut body = json!({
        "model": "sim", "prompt": ["One", "Two"], "max_tokens": 7, "n": 2, "seed": 1, "logprobs": 1, "stream": true,
    });
    let events = events(&suite, "/v1/completions", &body).await;
    one_answer(&events, "text_completion");
    assert!(events.iter().all(|event| event.get("usage").is_none()), "usage was not asked for");
    body["stream"] = json!(false);
    let whole = suite.client.post("/v1/completions", &body).await.unwrap().body;
    one_answer(std::slice::from_ref(&whole), "text_completion");
    let usage = &whole["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]),
        (&json!(6), &json!(28), &json!(34))
    );
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(index), &json!("length")));
        let mine = || {
            events.iter().flat_map(|it| it["choices"].as_array().unwrap()).filter(|it| it["index"] == index)
        };
        let text: String = mine().map(|it| it["text"].as_str().unwrap()).collect();
        assert_eq!(choice["text"], text);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let parts: Vec<&Value> =
                mine().filter_map(|it| it["logprobs"][list].as_array()).flatten().collect();
            assert_eq!(
                choice["logprobs"][list].as_array().unwrap().iter().collect::<Vec<_>>(),
                parts,
                "{list}"
            );
            assert_eq!(parts.len(), 7);
        }
    }
    // The prompt first, when it is asked for; both choices of each prompt.
    let echoed =
        json!({"model": "sim", "prompt": ["One", "Two"], "max_tokens": 7, "n": 2, "seed": 1, "echo": true});
    let echoed = suite.client.post("/v1/completions", &echoed).await.unwrap().body;
    for (index, prompt) in ["One", "One", "Two", "Two"].into_iter().enumerate() {
        let expected = prompt.to_owned() + whole["choices"][index]["text"].as_str().unwrap();
        assert_eq!(echoed["choices"][index]["text"], expected);
    }
    suite.idle().await;
}

#[tokio::test]
async fn models_and_headers() {
    let suite = Suite::sim().await;
    let list = suite.client.get("/v1/models").await.unwrap();
    assert_eq!((list.status, &list.body["object"]), (200, &json!("list")));
    let listed = &list.body["data"][0];
    assert_eq!(
        (&listed["id"], &listed["object"], &listed["max_model_len"]),
        (&json!("sim"), &json!("model"), &json!(32_768))
    );
    assert!(listed["created"].is_i64() && listed["owned_by"].is_string());
    assert_eq!(&suite.client.get("/v1/models/sim").await.unwrap().body, listed);

    let request = reqwest::Client::new().post(format!("{}/v1/completions", suite.client.base()));
    let body = json!({"model": "sim", "prompt": "x", "max_tokens": 1}).to_string();
    let answer = request.header("x-request-id", "from-a-client").body(body).send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "from-a-client");
    let worker = answer.headers()["x-armature-decode-worker"].to_str().unwrap().to_owned();
    let ids: Vec<String> = suite
        .workers()
        .await
        .iter()
        .map(|it| format!("{:016x}", it.worker.as_ref().unwrap().instance_id))
        .collect();
    assert!(ids.contains(&worker), "{worker} is one of {ids:?}");
    suite.idle().await;
}
