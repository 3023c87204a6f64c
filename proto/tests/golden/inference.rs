//! Requests and answers of the client API, and what workers share with it.

use std::collections::HashMap;

use armature_contracts::{inference::v1 as inference, kv::v1 as kv};

use crate::{Golden, digest, golden, seconds};

pub(crate) fn all() -> Vec<Golden> {
    vec![
        golden("armature.inference.v1.RequestContext#migrated", context()),
        golden("armature.inference.v1.GenerateRequest", generate()),
        golden(
            "armature.inference.v1.GenerateResponse#started",
            inference::GenerateResponse {
                event: Some(inference::generate_response::Event::Started(started())),
            },
        ),
        golden(
            "armature.inference.v1.GenerateResponse#delta",
            inference::GenerateResponse {
                event: Some(inference::generate_response::Event::Delta(text_delta())),
            },
        ),
        golden(
            "armature.inference.v1.GenerateResponse#finished",
            inference::GenerateResponse {
                event: Some(inference::generate_response::Event::Finished(finished())),
            },
        ),
    ]
}

pub(crate) fn reservation() -> inference::ReservationKey {
    inference::ReservationKey { id: vec![0xab; 16].into(), attempt: 2 }
}

pub(crate) fn session() -> inference::Session {
    inference::Session { id: "conversation-1".into(), hint: inference::SessionHint::Continues.into() }
}

pub(crate) fn context() -> inference::RequestContext {
    inference::RequestContext {
        request_id: "0123456789abcdef".into(),
        reservation: Some(reservation()),
        tenant: "tenant".into(),
        cache_salt: "salt".into(),
        model_digest: digest(1),
        priority: -3,
        adapter: Some(inference::Adapter { name: "lora".into(), digest: digest(2) }),
        session: Some(session()),
        budget: Some(inference::Budget { max_queue: seconds(2), attempts_left: 3 }),
        migrated: true,
    }
}

pub(crate) fn sampling() -> inference::SamplingParams {
    inference::SamplingParams {
        temperature: Some(0.75),
        top_p: Some(0.5),
        top_k: Some(40),
        min_p: Some(0.25),
        presence_penalty: Some(-0.5),
        frequency_penalty: Some(1.5),
        repetition_penalty: Some(1.125),
        logit_bias: HashMap::from([(262_000, -100.0)]),
        seed: Some(u64::MAX),
        logprobs: Some(5),
    }
}

pub(crate) fn stop() -> inference::StopConditions {
    inference::StopConditions {
        max_tokens: Some(128),
        min_tokens: 2,
        stop_token_ids: vec![2, 49_151],
        ignore_eos: true,
    }
}

pub(crate) fn token() -> inference::TokenInfo {
    let alternative = inference::TokenAlternative { token_id: 300, logprob: -2.5 };
    inference::TokenInfo { token_id: 262_143, logprob: Some(-0.125), top: vec![alternative] }
}

pub(crate) fn usage() -> inference::Usage {
    inference::Usage {
        prompt_tokens: 512,
        completion_tokens: 64,
        cached_tokens: 16,
        transferred_tokens: 128,
        computed_tokens: 368,
        cached_by_tier: vec![inference::CachedTokens { tier: kv::Tier::Object.into(), tokens: 16 }],
        remote_computed_tokens: 100,
    }
}

pub(crate) fn generate() -> inference::GenerateRequest {
    let message =
        inference::ChatMessage { role: "user".into(), content: "Grüße".into(), name: "someone".into() };
    let messages = inference::ChatMessages { messages: vec![message] };
    inference::GenerateRequest {
        model: "model".into(),
        input: Some(inference::generate_request::Input::Messages(messages)),
        sampling: Some(sampling()),
        stop: Some(stop()),
        stop_strings: vec!["END".into()],
        n: Some(2),
        cache_salt: "salt".into(),
        priority: 1,
        session: Some(session()),
        return_token_ids: true,
    }
}

pub(crate) fn started() -> inference::Started {
    inference::Started {
        request_id: "0123456789abcdef".into(),
        model: "model".into(),
        prompt_tokens: 512,
        seed: 1 << 63,
        decode_worker: "000000000000002a.0".into(),
        prefill_worker: "000000000000002b.0".into(),
        decision_id: "0000000000000007".into(),
    }
}

pub(crate) fn text_delta() -> inference::TextDelta {
    inference::TextDelta {
        choice: 1,
        text: "née".into(),
        tokens: vec![token()],
        finish_reason: inference::FinishReason::Length.into(),
    }
}

pub(crate) fn finished() -> inference::Finished {
    inference::Finished { usage: Some(usage()), migrations: 1, migrated_inexact: true }
}
