//! Bodies that nobody would write: read or refused, never a panic, and what is refused is named.

use armature_frontend::domain::params::Invalid;
use armature_frontend::http::chat::ChatRequest;
use armature_frontend::http::completions::CompletionRequest;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const FIELDS: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "stop",
    "cache_salt",
    "stream",
    "stream_options",
    "echo",
    "best_of",
    "suffix",
    "tools",
    "tool_choice",
    "response_format",
    "modalities",
    "chat_template_kwargs",
    "add_generation_prompt",
    "skip_special_tokens",
    "unknown",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!({"role": "user", "content": "x"})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("role|content|type|text|65|[a-z]{1,3}", inner, 0..4)
                .prop_map(|it| Value::Object(it.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn named<T>(result: Result<T, Invalid>) -> bool {
    result.err().is_none_or(|invalid| !invalid.message.is_empty())
}

proptest! {
    #[test]
    fn any_bytes(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(named(ChatRequest::parse(&body)));
        prop_assert!(named(CompletionRequest::parse(&body)));
    }

    #[test]
    fn any_values(given in prop::collection::vec((prop::sample::select(FIELDS), value()), 0..6)) {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "x"});
        for (field, value) in given {
            body[field] = value;
        }
        for result in [
            ChatRequest::parse(body.to_string().as_bytes()).map(|_| ()),
            CompletionRequest::parse(body.to_string().as_bytes()).map(|_| ()),
        ] {
            if let Err(invalid) = result {
                // It is well-formed JSON: what is wrong is one of its fields.
                let name = invalid.param.split(['.', '[']).next().unwrap();
                prop_assert!(FIELDS.contains(&name), "{invalid:?}");
            }
        }
    }
}
