//! Whatever comes over HTTP that cannot be served is refused in OpenAI's shape, before a stream begins, and disturbs nobody.

use armature_e2e::suite::Suite;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn good(path: &str) -> Value {
    match path {
        CHAT => json!({"model": "sim", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        _ => json!({"model": "sim", "prompt": "Hi", "max_tokens": 4}),
    }
}

/// For each parameter, values of a wrong type or out of range.
fn parameters() -> Vec<(&'static str, Vec<Value>)> {
    let (no, text, list, object) = (json!(false), json!("x"), json!([1]), json!({"a": 1}));
    let numbers = |more: &[Value]| [&[text.clone(), list.clone(), object.clone(), no.clone()], more].concat();
    vec![
        ("model", vec![json!(1), no.clone(), list.clone(), object.clone(), json!(""), json!(null)]),
        ("temperature", numbers(&[json!(-0.1), json!(2.5), json!(1e308), json!("NaN"), json!(-1e308)])),
        ("top_p", numbers(&[json!(0), json!(-1), json!(1.5)])),
        ("top_k", numbers(&[json!(-7), json!(0.5), json!(u64::MAX)])),
        ("min_p", numbers(&[json!(-1), json!(2)])),
        ("presence_penalty", numbers(&[json!(-3), json!(3)])),
        ("frequency_penalty", numbers(&[json!(-3), json!(3)])),
        ("repetition_penalty", numbers(&[json!(0), json!(-1), json!(3)])),
        ("n", numbers(&[json!(0), json!(-1), json!(1.5), json!(129), json!(u64::MAX), json!(1e300)])),
        (
            "max_tokens",
            numbers(&[json!(0), json!(-1), json!(0.5), json!(i64::MIN), json!(u64::MAX), json!(1e300)]),
        ),
        ("min_tokens", numbers(&[json!(-1), json!(100)])),
        ("seed", numbers(&[json!(0.5), json!(1e300)])),
        (
            "stop",
            vec![
                json!(1),
                no.clone(),
                object.clone(),
                list.clone(),
                json!([""]),
                json!(""),
                json!(vec!["x"; 17]),
            ],
        ),
        (
            "stop_token_ids",
            vec![text.clone(), object.clone(), json!([-1]), json!([1e9]), json!(["x"]), json!([259])],
        ),
        (
            "logit_bias",
            vec![text.clone(), list.clone(), json!({"x": 1}), json!({"-1": 1}), json!({"259": 1})],
        ),
        ("ignore_eos", vec![text.clone(), json!(1), list.clone()]),
        ("stream_options", vec![text.clone(), json!(1), list.clone()]),
        ("cache_salt", vec![json!(1), no.clone(), list.clone(), json!("x".repeat(257))]),
        ("guided_regex", vec![text.clone()]),
        ("stream", vec![text, json!(1), list, object]),
    ]
}

/// Bodies that are whole but wrong, and the parameter that is.
fn wrong_bodies(path: &str) -> Vec<(Value, &'static str)> {
    let with = |field: &str, value: Value| {
        let mut body = good(path);
        body[field] = value;
        body
    };
    let mut table: Vec<(Value, &'static str)> = parameters()
        .into_iter()
        .flat_map(|(field, values)| values.into_iter().map(move |value| (field, value)))
        .map(|(field, value)| (with(field, value), field))
        .collect();
    table.push((with("logit_bias", json!({"65": 1e9})), "logit_bias.65"));
    // A token is a byte here: more than the context of 32,768.
    let long = "x".repeat(40_000);
    if path == CHAT {
        let message = |message: Value| with("messages", json!([message]));
        table.extend([
            (with("messages", json!(null)), "messages"),
            (with("messages", json!([])), "messages"),
            (with("messages", json!("Hi")), "messages"),
            (with("messages", json!({})), "messages"),
            (with("messages", json!([1])), "messages[0]"),
            (message(json!({})), "messages[0].role"),
            (message(json!({"role": 1, "content": "x"})), "messages[0].role"),
            (message(json!({"role": "user"})), "messages[0].content"),
            (message(json!({"role": "user", "content": 1})), "messages[0].content"),
            (
                message(json!({"role": "user", "content": [{"type": "image_url"}]})),
                "messages[0].content[0].type",
            ),
            (message(json!({"role": "user", "content": long})), "messages"),
            (with("max_completion_tokens", json!(0)), "max_completion_tokens"),
            (with("max_tokens", json!(40_000)), "messages"),
            (with("logprobs", json!(1)), "logprobs"),
            (with("top_logprobs", json!(3)), "top_logprobs"),
            (with("tools", json!([{"type": "function"}])), "tools"),
            (with("response_format", json!({"type": "json_object"})), "response_format"),
        ]);
    } else {
        table.extend([
            (with("prompt", json!(null)), "prompt"),
            (with("prompt", json!("")), "prompt"),
            (with("prompt", json!([])), "prompt"),
            (with("prompt", json!(1)), "prompt"),
            (with("prompt", json!({})), "prompt"),
            (with("prompt", json!([-1])), "prompt"),
            (with("prompt", json!([259])), "prompt"),
            (with("prompt", json!([1e300])), "prompt"),
            (with("prompt", json!(["x", 1])), "prompt[1]"),
            (with("prompt", json!([[1], ["x"]])), "prompt[1]"),
            (with("prompt", json!(long)), "prompt"),
            (with("prompt", json!(vec![1; 40_000])), "prompt"),
            (with("max_tokens", json!(40_000)), "prompt"),
            (with("logprobs", json!(true)), "logprobs"),
            (with("logprobs", json!(100)), "logprobs"),
            (with("best_of", json!(3)), "best_of"),
            (with("echo", json!("x")), "echo"),
        ]);
    }
    table
}

/// Bytes that are no request, and the parameter when one can be told.
fn wrong_bytes(path: &str) -> Vec<(Vec<u8>, Option<&'static str>)> {
    let good = good(path).to_string();
    let more = |more: &str| (good.trim_end_matches('}').to_owned() + "," + more + "}").into_bytes();
    let mut table: Vec<(Vec<u8>, Option<&'static str>)> = vec![
        (b"".to_vec(), None),
        (b"null".to_vec(), None),
        (b"[]".to_vec(), None),
        (b"{}".to_vec(), Some("model")),
        (b"\"text\"".to_vec(), None),
        (b"\xff\xfe\x00".to_vec(), None),
        (b"{\"model\": \"\xc3\x28\"}".to_vec(), None),
        (br#"{"model": "\ud800"}"#.to_vec(), None),
        (b"{\"model\": \"sim\0".to_vec(), None),
        (more(r#""temperature": NaN"#), None),
        (more(r#""temperature": Infinity"#), None),
        (more(r#""temperature": -Infinity"#), None),
        (more(r#""temperature": 1e999"#), None),
        (more(r#""seed": 99999999999999999999999999999999999999999"#), Some("seed")),
        (more(r#""n": 01"#), None),
        (more(r#""n": 1, "n": 2"#), Some("n")),
        (more(r#""model": "other""#), Some("model")),
        (more(&format!(r#""logit_bias": {}{}"#, "{\"a\":".repeat(5000), "}".repeat(5000))), None),
        ("[".repeat(100_000).into_bytes(), None),
        (more("").trim_ascii().to_vec(), None),
        (format!("{good} {good}").into_bytes(), None),
    ];
    // Cut off anywhere.
    table.extend((1..good.len()).map(|end| (good.as_bytes()[..end].to_vec(), None)));
    table
}

/// The error of an answer, its shape checked.
fn error(status: u16, body: &Value, what: &str) -> Value {
    assert!((400..500).contains(&status), "{status} for {what}: {body}");
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|it| !it.is_empty()), "{what}: {body}");
    assert!(error["type"].is_string() && error["code"].is_string(), "{what}: {body}");
    assert!(error["param"].is_string() || error["param"].is_null(), "{what}: {body}");
    error.clone()
}

fn short(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}

async fn refused(suite: &Suite, path: &str, bytes: Vec<u8>, status: u16, param: Option<&str>) {
    let what = format!("{path} {}", short(&bytes));
    let answer = suite.client.post_bytes(path, bytes).await.unwrap();
    let error = error(answer.status, &answer.body, &what);
    assert_eq!((answer.status, error["param"].as_str()), (status, param), "{what}: {error}");
    assert_eq!(answer.header("content-type"), "application/json", "{what}");
    assert!(answer.header("x-armature-decode-worker").is_empty(), "{what}");
    assert!(!answer.header("x-request-id").is_empty(), "{what}");
}

async fn still_serves(suite: &Suite) {
    for path in [CHAT, TEXT] {
        let answer = suite.client.post(path, &good(path)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.body["usage"]["completion_tokens"], 4);
    }
    suite.idle().await;
}

#[tokio::test]
async fn wrong_parameters_are_named() {
    let suite = Suite::sim().await;
    for path in [CHAT, TEXT] {
        for (body, param) in wrong_bodies(path) {
            refused(&suite, path, body.to_string().into_bytes(), 400, Some(param)).await;
            // A stream is refused as a plain request is: never an event that says so.
            if param != "stream" {
                let mut body = body;
                body["stream"] = json!(true);
                refused(&suite, path, body.to_string().into_bytes(), 400, Some(param)).await;
            }
        }
        for stream in [false, true] {
            let mut body = good(path);
            body["stream"] = json!(stream);
            body["model"] = json!("no such model");
            refused(&suite, path, body.to_string().into_bytes(), 404, Some("model")).await;
        }
    }
    still_serves(&suite).await;
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused() {
    let suite = Suite::sim().await;
    for path in [CHAT, TEXT] {
        for (bytes, param) in wrong_bytes(path) {
            refused(&suite, path, bytes, 400, param).await;
        }
        // One byte beyond the limit of 16 MiB.
        refused(&suite, path, vec![b' '; 16 * 1024 * 1024 + 1], 413, None).await;
    }
    still_serves(&suite).await;
}

#[tokio::test]
async fn wrong_places_are_refused() {
    let suite = Suite::sim().await;
    let http = reqwest::Client::new();
    let url = |path: &str| format!("{}{path}", suite.client.base());
    let body = good(CHAT).to_string();
    let table = [
        (http.get(url(CHAT)), 405),
        (http.get(url(TEXT)), 405),
        (http.delete(url(CHAT)), 405),
        (http.post(url("/v1/models")), 405),
        (http.get(url("/v1/models/no%20such")), 404),
        (http.get(url("/v1/models/%ff%fe")), 404),
        (http.get(url("/v1/nothing")), 404),
        (http.post(url("/v1/chat/completions/more")).body(body.clone()), 404),
        (http.post(url(CHAT)).header("content-type", "text/plain").body(body.clone()), 415),
        (
            http.post(url(CHAT)).header("content-type", "multipart/form-data; boundary=x").body(body.clone()),
            415,
        ),
        (http.post(url(CHAT)).header("content-type", "application/x-www-form-urlencoded").body(body), 415),
    ];
    for (request, status) in table {
        let what = format!("{request:?}");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{what}");
        error(status, &answer.json().await.unwrap(), &what);
    }
    still_serves(&suite).await;
}
