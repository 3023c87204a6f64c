use serde_json::{Value, json};

use crate::fake_worker::Script;
use crate::harness::{END, Harness, MODEL, Setup, says};

fn ask(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn an_answer_in_one_piece() {
    let harness = Harness::says("Grüße 😀").await;
    let answer =
        harness.client().await.post(PATH, &ask(json!({"seed": 7, "max_completion_tokens": 40}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], MODEL);
    assert_eq!(
        body["choices"][0]["message"],
        json!({"role": "assistant", "content": "Grüße 😀", "refusal": null})
    );
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let prompt = "?user\nHi?\n?assistant\n".len();
    let completion = "Grüße 😀".len() + 1;
    assert_eq!(body["usage"]["prompt_tokens"], prompt);
    assert_eq!(body["usage"]["completion_tokens"], completion);
    assert_eq!(body["usage"]["total_tokens"], prompt + completion);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert_eq!(answer.headers["x-armature-decode-worker"], "00000000000000a1");
    assert_eq!(answer.headers["x-armature-decision-id"], "router-1-1");
    assert!(!answer.headers["x-request-id"].is_empty());

    let request = harness.workers[0].asked().remove(0);
    assert_eq!(request.sampling.as_ref().unwrap().seed, Some(7));
    assert_eq!(request.stop.as_ref().unwrap().max_tokens, Some(40));
    let blocks = request.blocks.unwrap();
    let routed = harness.router().asked().remove(0);
    let hashes = routed.prompt.unwrap();
    assert_eq!((blocks.block_size, hashes.block_size), (16, 16));
    assert_eq!(hashes.sequence_hashes.len(), prompt / 16);
    assert_eq!(
        (blocks.first, blocks.last),
        (Some(hashes.sequence_hashes[0]), hashes.sequence_hashes.last().copied())
    );
    assert_eq!(routed.prompt_tokens as usize, prompt);
}

#[tokio::test]
async fn an_answer_in_events() {
    let harness = Harness::says("Grüße 😀").await;
    let body = ask(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = harness.client().await.post(PATH, &body).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["usage"], Value::Null);
    assert!(events[0].as_object().unwrap().contains_key("usage"));
    assert_eq!(answer.streamed(0), "Grüße 😀");
    let [.., finish, usage, done] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], "Grüße 😀".len() + 1);
    assert_eq!(done, "[DONE]");
    let ids: std::collections::HashSet<_> = events.iter().filter_map(|it| it["id"].as_str()).collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn head_and_first_event_come_together() {
    use armature_svc_kit::address::Address;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let harness = Harness::start(Setup {
        workers: vec![Script { stalls_after: Some(1), ..says("Hi") }],
        ..Setup::default()
    })
    .await;
    let mut connection = harness.network.connect(&Address::mem("http")).await.unwrap();
    let body = ask(json!({"stream": true})).to_string();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes()).await.unwrap();
    let mut first = vec![0; 4096];
    let length = connection.read(&mut first).await.unwrap();
    let first = String::from_utf8_lossy(&first[..length]);
    assert!(first.starts_with("HTTP/1.1 200") && first.contains("\"role\":\"assistant\""), "{first}");
    assert!(first.contains("\"content\":\"H\""), "{first}");
}

#[tokio::test]
async fn choices_keep_apart() {
    let script = Script { numbered: true, ..says(" is it") };
    let harness = Harness::start(Setup { workers: vec![script], ..Setup::default() }).await;
    let whole = harness.client().await.post(PATH, &ask(json!({"n": 3}))).await.json();
    let texts: Vec<_> = (0..3).map(|i| whole["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["0 is it", "1 is it", "2 is it"]);
    let streamed = harness.client().await.post(PATH, &ask(json!({"n": 3, "stream": true}))).await;
    for (choice, text) in (0..).zip(texts) {
        assert_eq!(streamed.streamed(choice), text);
    }
    let roles =
        streamed.events().iter().filter(|it| it["choices"][0]["delta"]["role"] == "assistant").count();
    assert_eq!(roles, 3);
}

#[tokio::test]
async fn a_stop_string_over_token_borders_ends_the_answer_and_the_work() {
    let harness = Harness::says("one two three four").await;
    for stop in [json!("thr"), json!(["zzz", "two t"]), json!(" thre")] {
        let answer = harness.client().await.post(PATH, &ask(json!({"stop": stop, "stream": true}))).await;
        let expected = if stop.is_array() { "one " } else { "one two" };
        assert_eq!(answer.streamed(0).trim_end(), expected.trim_end(), "{stop}");
        let finish = answer
            .events()
            .iter()
            .rev()
            .find_map(|it| it["choices"][0]["finish_reason"].as_str().map(str::to_owned));
        assert_eq!(finish.as_deref(), Some("stop"));
        harness.workers[0].running.subscribe().wait_for(|running| *running == 0).await.unwrap();
    }
}

#[tokio::test]
async fn length_is_a_reason_to_end() {
    let harness = Harness::says("long text").await;
    let body = harness.client().await.post(PATH, &ask(json!({"max_tokens": 4}))).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "long");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn logprobs_have_token_bytes_and_alternatives() {
    let harness = Harness::says("é!").await;
    let asked = ask(json!({"logprobs": true, "top_logprobs": 2}));
    let body = harness.client().await.post(PATH, &asked).await.json();
    let content = &body["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content[1]["bytes"], json!([0xa9]));
    assert_eq!(content[2]["token"], "!");
    assert_eq!(content[2]["logprob"], -0.5);
    let top = content[2]["top_logprobs"].as_array().unwrap();
    assert_eq!((top.len(), top[1]["token"].as_str(), top[1]["logprob"].as_f64()), (2, Some("b"), Some(-2.0)));

    let plain = harness.client().await.post(PATH, &ask(json!({"logprobs": true}))).await.json();
    assert_eq!(plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    let without = harness.client().await.post(PATH, &ask(json!({}))).await.json();
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn parameters_reach_the_worker() {
    let harness = Harness::says("x").await;
    let body = ask(json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 9, "min_p": 0.125, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "logit_bias": {"65": -100}, "seed": -1, "min_tokens": 2, "ignore_eos": true,
        "stop_token_ids": [66], "user": "somebody", "metadata": {"a": "b"}, "store": false, "unknown": [1]
    }));
    assert_eq!(harness.client().await.post(PATH, &body).await.status, 200);
    let request = harness.workers[0].asked().remove(0);
    let sampling = request.sampling.unwrap();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.5), Some(0.25), Some(9)));
    assert_eq!((sampling.min_p, sampling.presence_penalty), (Some(0.125), Some(1.0)));
    assert_eq!((sampling.frequency_penalty, sampling.repetition_penalty), (Some(-1.0), Some(1.5)));
    assert_eq!((sampling.logit_bias[&65], sampling.seed), (-100.0, Some(u64::MAX)));
    let stop = request.stop.unwrap();
    assert_eq!((stop.min_tokens, stop.ignore_eos, stop.stop_token_ids), (2, true, vec![66]));
    assert_eq!(stop.max_tokens.unwrap() as usize + request.prompt_token_ids.len(), 256);
}

#[tokio::test]
async fn text_parts_and_ids_of_the_caller() {
    let harness = Harness::says("x").await;
    let mut body = ask(json!({}));
    body["messages"][0]["content"] =
        json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let mut request = crate::client::Client::request(PATH, body.to_string());
    request.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    request.headers_mut().insert("traceparent", trace.parse().unwrap());
    let answer = harness.client().await.send(request).await;
    assert_eq!(answer.headers["x-request-id"], "mine-1");
    assert_eq!(answer.json()["id"], "chatcmpl-mine-1");
    let request = harness.workers[0].asked().remove(0);
    assert_eq!(request.context.unwrap().request_id, "mine-1");
    let text: Vec<u8> = request.prompt_token_ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
    assert!(String::from_utf8(text).unwrap().contains("one\ntwo"));
    assert!(request.prompt_token_ids.contains(&END));
}

#[tokio::test]
async fn a_stop_string_ends_one_choice_and_the_others_go_on() {
    let script = Script { numbered: true, ..says(" goes on") };
    let harness = Harness::start(Setup { workers: vec![script], ..Setup::default() }).await;
    let body = harness.client().await.post(PATH, &ask(json!({"n": 2, "stop": "1 g"}))).await.json();
    let texts: Vec<_> = (0..2).map(|i| body["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["0 goes on", ""]);
    assert_eq!(body["usage"]["completion_tokens"], "0 goes on".len() + 1 + "1 g".len());
}
