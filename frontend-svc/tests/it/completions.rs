use serde_json::{Value, json};

use crate::fake_worker::Script;
use crate::harness::{Harness, MODEL, Setup, says};

const PATH: &str = "/v1/completions";

fn ask(prompt: Value, more: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": prompt});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_prompt_is_taken_in_every_form() {
    let harness = Harness::says("ok").await;
    for prompt in [json!("ab"), json!(["ab"]), json!([97, 98]), json!([[97, 98]])] {
        let body = harness.client().await.post(PATH, &ask(prompt.clone(), json!({}))).await.json();
        assert_eq!(body["object"], "text_completion", "{prompt}: {body}");
        assert_eq!(body["choices"][0]["text"], "ok");
        assert_eq!(body["usage"]["prompt_tokens"], 2);
    }
    for request in harness.workers[0].asked() {
        assert_eq!(request.prompt_token_ids, [97, 98]);
        assert_eq!(request.stop.unwrap().max_tokens, Some(16));
    }
}

#[tokio::test]
async fn several_prompts_times_several_choices() {
    let script = Script { numbered: true, ..says("!") };
    let harness = Harness::start(Setup { workers: vec![script], ..Setup::default() }).await;
    let prompts = json!(["first", "second"]);
    let body =
        harness.client().await.post(PATH, &ask(prompts.clone(), json!({"n": 2, "echo": true}))).await.json();
    let texts: Vec<_> = (0..4).map(|i| body["choices"][i]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["first0!", "first1!", "second0!", "second1!"]);
    assert_eq!(body["usage"]["prompt_tokens"], "firstsecond".len());
    assert_eq!(body["usage"]["completion_tokens"], 4 * 3);
    let streamed =
        harness.client().await.post(PATH, &ask(prompts, json!({"n": 2, "echo": true, "stream": true}))).await;
    for (choice, text) in (0..).zip(texts) {
        assert_eq!(streamed.streamed(choice), text);
    }
    assert_eq!(streamed.events().last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn logprobs_are_parallel_lists() {
    let harness = Harness::says("ab").await;
    for stream in [false, true] {
        let answer = harness
            .client()
            .await
            .post(PATH, &ask(json!("x"), json!({"logprobs": 1, "stream": stream})))
            .await;
        let choices: Vec<Value> = if stream {
            answer.events().iter().filter_map(|it| it["choices"].as_array().cloned()).flatten().collect()
        } else {
            answer.json()["choices"].as_array().unwrap().clone()
        };
        let list = |name: &str| -> Vec<Value> {
            choices.iter().filter_map(|it| it["logprobs"][name].as_array().cloned()).flatten().collect()
        };
        assert_eq!(list("tokens"), ["a", "b", "<|im_end|>"]);
        assert_eq!(list("token_logprobs"), [-0.5, -0.5, -0.5]);
        assert_eq!(list("text_offset"), [0, 1, 2]);
        assert_eq!(list("top_logprobs")[0], json!({"a": -1.0}));
    }
}
