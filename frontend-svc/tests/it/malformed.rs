//! Every malformed request is a 4xx that names the parameter, and reaches no router.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Harness, MODEL, Setup};

fn chat(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn message(message: Value) -> Value {
    chat(json!({"messages": [message]}))
}

fn text(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "Hi"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What both endpoints check: (field, values).
fn common() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("temperature", vec![json!(-0.1), json!(2.1), json!("hot"), json!(1e300), json!([])]),
        ("top_p", vec![json!(0), json!(1.1), json!(-1), json!({})]),
        ("top_k", vec![json!(-2), json!(1.5), json!("all"), json!(1e17)]),
        ("min_p", vec![json!(-0.1), json!(1.1)]),
        ("presence_penalty", vec![json!(-2.1), json!(2.1), json!(true)]),
        ("frequency_penalty", vec![json!(-2.1), json!(2.1)]),
        ("repetition_penalty", vec![json!(0), json!(2.1), json!(-1)]),
        ("n", vec![json!(0), json!(-1), json!(129), json!(1e15), json!("2")]),
        ("max_tokens", vec![json!(0), json!(-1), json!(1.5), json!(u64::MAX)]),
        ("min_tokens", vec![json!(-1), json!("x")]),
        ("seed", vec![json!(1.5), json!("x"), json!(1e30)]),
        ("stop", vec![json!(7), json!([1]), json!([""]), json!(vec!["x"; 17]), json!("x".repeat(1025))]),
        ("stop_token_ids", vec![json!(7), json!(["x"]), json!([-1]), json!([258]), json!(vec![1; 65])]),
        ("logit_bias", vec![json!([]), json!({"x": 1}), json!({"258": 1}), json!({"-1": 0})]),
        ("logit_bias.65", vec![json!(101), json!("x")]),
        ("ignore_eos", vec![json!("yes"), json!(1)]),
        ("stream", vec![json!("yes"), json!(1)]),
        ("model", vec![json!(null), json!(""), json!(7), json!([])]),
        ("cache_salt", vec![json!(7), json!("x".repeat(257))]),
        ("guided_json", vec![json!({"type": "object"})]),
        ("prompt_logprobs", vec![json!(1)]),
        ("use_beam_search", vec![json!(true)]),
        ("skip_special_tokens", vec![json!("no")]),
    ]
}

fn set(mut body: Value, field: &str, value: Value) -> Value {
    match field.split_once('.') {
        Some((outer, inner)) => body[outer] = json!({ inner: value }),
        None => body[field] = value,
    }
    body
}

fn chat_table() -> Vec<(Value, &'static str)> {
    let part = |part: Value| message(json!({"role": "user", "content": [part]}));
    let mut table = vec![
        (json!({"model": MODEL}), "messages"),
        (chat(json!({"messages": []})), "messages"),
        (chat(json!({"messages": "Hi"})), "messages"),
        (chat(json!({"messages": ["Hi"]})), "messages[0]"),
        (message(json!({"content": "Hi"})), "messages[0].role"),
        (message(json!({"role": 1, "content": "Hi"})), "messages[0].role"),
        (message(json!({"role": "", "content": "Hi"})), "messages[0].role"),
        (message(json!({"role": "tool", "content": "Hi"})), "messages[0].role"),
        (message(json!({"role": "user"})), "messages[0].content"),
        (message(json!({"role": "user", "content": 7})), "messages[0].content"),
        (message(json!({"role": "user", "content": "x", "name": 7})), "messages[0].name"),
        (
            message(json!({"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]})),
            "messages[0].tool_calls",
        ),
        (part(json!("x")), "messages[0].content[0]"),
        (part(json!({"type": "image_url", "image_url": {"url": "x"}})), "messages[0].content[0].type"),
        (part(json!({"text": "x"})), "messages[0].content[0].type"),
        (part(json!({"type": "text"})), "messages[0].content[0].text"),
        (part(json!({"type": "text", "text": 7})), "messages[0].content[0].text"),
        (chat(json!({"tools": [{"type": "function"}]})), "tools"),
        (chat(json!({"tool_choice": "required"})), "tool_choice"),
        (chat(json!({"response_format": {"type": "json_object"}})), "response_format"),
        (chat(json!({"modalities": ["audio"]})), "modalities"),
        (chat(json!({"chat_template": "x"})), "chat_template"),
        (chat(json!({"top_logprobs": 2})), "top_logprobs"),
        (chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
        (chat(json!({"logprobs": 5})), "logprobs"),
        (chat(json!({"max_completion_tokens": 0})), "max_completion_tokens"),
        (chat(json!({"max_tokens": 4, "min_tokens": 5})), "min_tokens"),
        (chat(json!({"stream_options": 1})), "stream_options"),
        (chat(json!({"stream": false, "stream_options": {}})), "stream_options"),
        (chat(json!({"stream_options": {"include_usage": 1}})), "stream_options.include_usage"),
    ];
    for (field, values) in common() {
        table.extend(values.into_iter().map(|value| (set(chat(json!({})), field, value), field)));
    }
    table
}

fn text_table() -> Vec<(Value, &'static str)> {
    let mut table = vec![
        (json!({"model": MODEL}), "prompt"),
        (text(json!({"prompt": ""})), "prompt"),
        (text(json!({"prompt": []})), "prompt"),
        (text(json!({"prompt": 7})), "prompt"),
        (text(json!({"prompt": {}})), "prompt"),
        (text(json!({"prompt": [1, "x"]})), "prompt"),
        (text(json!({"prompt": ["x", 1]})), "prompt[1]"),
        (text(json!({"prompt": ["x", ""]})), "prompt[1]"),
        (text(json!({"prompt": [[1], []]})), "prompt[1]"),
        (text(json!({"prompt": [-1]})), "prompt"),
        (text(json!({"prompt": [258]})), "prompt"),
        (text(json!({"prompt": vec!["x"; 257]})), "prompt"),
        (text(json!({"suffix": "x"})), "suffix"),
        (text(json!({"best_of": 2})), "best_of"),
        (text(json!({"echo": 1})), "echo"),
        (text(json!({"logprobs": true})), "logprobs"),
        (text(json!({"logprobs": 21})), "logprobs"),
        (text(json!({"logprobs": 1, "echo": true})), "logprobs"),
    ];
    for (field, values) in common() {
        table.extend(values.into_iter().map(|value| (set(text(json!({})), field, value), field)));
    }
    table
}

#[tokio::test]
async fn each_is_refused_by_name() {
    let harness = Harness::start(Setup::default()).await;
    let mut client = harness.client().await;
    for (path, table) in [("/v1/chat/completions", chat_table()), ("/v1/completions", text_table())] {
        for (body, param) in table {
            let answer = client.post(path, &body).await;
            assert_eq!(answer.status, 400, "{body}: {}", answer.text());
            let error = answer.json()["error"].clone();
            assert_eq!(error["param"], param, "{body}: {error}");
            assert_eq!(error["type"], "invalid_request_error", "{body}");
            let base = param.split(['.', '[']).next().unwrap();
            assert!(error["message"].as_str().unwrap().contains(base), "{error}");
        }
    }
    assert!(harness.router().asked().is_empty());
}

#[tokio::test]
async fn what_is_no_json_is_refused() {
    let harness = Harness::start(Setup::default()).await;
    let mut client = harness.client().await;
    let bodies: [&[u8]; 10] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\"text\"",
        b"{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi",
        b"{\"model\": \"tiny\", \"temperature\": NaN}",
        b"{\"model\": \"tiny\", \"temperature\": 1e999}",
        b"{\"model\": \"\xff\xfe\"}",
        b"{\"model\": \"\\ud800\"}",
    ];
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for body in bodies {
            let answer = client.post_bytes(path, body).await;
            assert_eq!(answer.status, 400, "{}: {}", String::from_utf8_lossy(body), answer.text());
            assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(client.post_bytes(path, deep).await.status, 400);
    }
}

#[tokio::test]
async fn a_name_given_twice_is_refused_by_name() {
    let harness = Harness::start(Setup::default()).await;
    let mut client = harness.client().await;
    let body = r#"{"model": "tiny", "prompt": "Hi", "n": 1, "n": 2, "model": "other"}"#;
    let answer = client.post_bytes("/v1/completions", body).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!("n")));
}

#[tokio::test]
async fn only_json_is_read() {
    let harness = Harness::says("x").await;
    for (kind, status) in [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=application/json", 415),
    ] {
        let mut request = Client::request("/v1/completions", text(json!({})).to_string());
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        let answer = harness.client().await.send(request).await;
        assert_eq!(answer.status, status, "{kind}: {}", answer.text());
    }
}

#[tokio::test]
async fn too_much_is_refused_by_its_limit() {
    let mut setup = Setup::default();
    setup.config.max_body_bytes = 4096;
    let harness = Harness::start(setup).await;
    let long =
        harness.client().await.post("/v1/completions", &text(json!({"prompt": "x".repeat(5000)}))).await;
    assert_eq!(long.status, 413);
    assert!(long.json()["error"]["message"].as_str().unwrap().contains("4096"), "{}", long.text());
    // However long it is, the answer is seen, and the connection can go on.
    let mut client = harness.client().await;
    for _ in 0..2 {
        let longer = client.post_bytes("/v1/completions", " ".repeat(8 * 1024 * 1024)).await;
        assert_eq!(longer.json()["error"]["code"], "body_too_large");
    }

    let body = text(json!({"prompt": "x".repeat(256)}));
    let prompt = harness.client().await.post("/v1/completions", &body).await;
    assert_eq!(
        (prompt.status.as_u16(), prompt.json()["error"]["code"].clone()),
        (400, json!("context_length_exceeded"))
    );
    assert_eq!(prompt.json()["error"]["param"], "prompt");
    let body = chat(json!({"max_tokens": 250}));
    let both = harness.client().await.post("/v1/chat/completions", &body).await;
    assert_eq!(both.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(both.json()["error"]["param"], "messages");
}

#[tokio::test]
async fn what_is_not_there_is_404() {
    let harness = Harness::start(Setup::default()).await;
    let mut client = harness.client().await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let mut body = if path.contains("chat") { chat(json!({})) } else { text(json!({})) };
        body["model"] = json!("unknown");
        let answer = client.post(path, &body).await;
        assert_eq!(answer.status, 404);
        let error = &answer.json()["error"];
        assert_eq!(
            (error["code"].as_str(), error["param"].as_str()),
            (Some("model_not_found"), Some("model"))
        );
    }
    assert_eq!(client.get("/v1/models/unknown").await.json()["error"]["code"], "model_not_found");
    // No model can have a name that is not UTF-8.
    assert_eq!(client.get("/v1/models/%ff").await.json()["error"]["code"], "not_found");
    assert_eq!(client.get("/v1/nothing").await.status, 404);
    assert_eq!(client.get("/v1/completions").await.status, 405);
    assert_eq!(client.get("/health").await.status, 200);
    assert_eq!(client.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
}
