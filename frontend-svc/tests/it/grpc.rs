//! The gRPC API.

use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1 as wire;
use armature_contracts::inference::v1::generate_response::Event;
use armature_contracts::inference::v1::inference_service_client::InferenceServiceClient;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::fake_worker::Script;
use crate::harness::{CONTEXT, END, Harness, MODEL, Setup, says};

fn client(harness: &Harness) -> InferenceServiceClient<Channel> {
    let channels = Channels::new(harness.network.clone(), ChannelOptions::default()).unwrap();
    InferenceServiceClient::new(channels.to(&Address::mem("grpc")))
}

/// The account of a plain request.
pub(crate) async fn finished(harness: &Harness) -> wire::Finished {
    let mut stream = client(harness).generate(ask()).await.unwrap().into_inner();
    let mut last = None;
    while let Some(message) = stream.next().await {
        last = message.unwrap().event;
    }
    match last {
        Some(Event::Finished(finished)) => finished,
        other => panic!("{other:?}"),
    }
}

fn ask() -> wire::GenerateRequest {
    wire::GenerateRequest {
        model: MODEL.into(),
        input: Some(wire::generate_request::Input::Text("Hi".into())),
        ..Default::default()
    }
}

#[tokio::test]
async fn started_deltas_finished() {
    let harness = Harness::says("Grüße").await;
    let request = wire::GenerateRequest { return_token_ids: true, ..ask() };
    let messages: Vec<_> = client(&harness)
        .generate(request)
        .await
        .unwrap()
        .into_inner()
        .map(|it| it.unwrap().event.unwrap())
        .collect()
        .await;
    let [Event::Started(started), deltas @ .., Event::Finished(finished)] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert_eq!((started.model.as_str(), started.prompt_tokens), (MODEL, 2));
    assert_eq!(started.decode_worker, "00000000000000a1");
    assert_eq!(harness.workers[0].asked()[0].sampling.as_ref().unwrap().seed, Some(started.seed));
    let mut text = String::new();
    let mut tokens = Vec::new();
    for delta in deltas {
        let Event::Delta(delta) = delta else { panic!("{delta:?}") };
        text.push_str(&delta.text);
        tokens.extend(delta.tokens.iter().map(|it| it.token_id));
    }
    assert_eq!(text, "Grüße");
    assert_eq!(tokens, "Grüße".bytes().map(u32::from).chain([END]).collect::<Vec<_>>());
    let usage = finished.usage.clone().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens), (2, 8, 2));
    assert_eq!((finished.migrations, finished.migrated_inexact), (0, false));
}

#[tokio::test]
async fn wrong_parameters_are_field_violations() {
    let harness = Harness::says("x").await;
    let sampling = |sampling| wire::GenerateRequest { sampling: Some(sampling), ..ask() };
    let prompt = |input| wire::GenerateRequest { input: Some(input), ..ask() };
    let chat = |messages| prompt(wire::generate_request::Input::Messages(wire::ChatMessages { messages }));
    let table = [
        (
            sampling(wire::SamplingParams { temperature: Some(f32::NAN), ..Default::default() }),
            "sampling.temperature",
        ),
        (sampling(wire::SamplingParams { top_p: Some(0.0), ..Default::default() }), "sampling.top_p"),
        (sampling(wire::SamplingParams { logprobs: Some(21), ..Default::default() }), "sampling.logprobs"),
        (
            wire::GenerateRequest {
                stop: Some(wire::StopConditions { max_tokens: Some(0), ..Default::default() }),
                ..ask()
            },
            "stop.max_tokens",
        ),
        (prompt(wire::generate_request::Input::Text("x".repeat(CONTEXT as usize))), "text"),
        (
            prompt(wire::generate_request::Input::TokenIds(wire::TokenIds { token_ids: vec![u32::MAX] })),
            "token_ids",
        ),
        (wire::GenerateRequest { n: Some(0), ..ask() }, "n"),
        (wire::GenerateRequest { stop_strings: vec![String::new()], ..ask() }, "stop_strings"),
        (wire::GenerateRequest { input: None, ..ask() }, "input"),
        (wire::GenerateRequest { model: String::new(), ..ask() }, "model"),
        (chat(Vec::new()), "messages"),
        (chat(vec![wire::ChatMessage::default()]), "messages[0].role"),
    ];
    for (request, field) in table {
        let status = client(&harness).generate(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}");
        assert_eq!(Fault::from_status(&status).violations[0].0, field, "{request:?}");
    }
    let unknown = client(&harness)
        .generate(wire::GenerateRequest { model: "other".into(), ..ask() })
        .await
        .unwrap_err();
    assert_eq!(
        (unknown.code(), Fault::from_status(&unknown).reason),
        (Code::NotFound, Reason::ModelNotFound)
    );
}

#[tokio::test]
async fn migrations_are_told() {
    let dying = Script { dies_after: Some(2), ..says("Hello") };
    let harness = Harness::start(Setup { workers: vec![dying, says("Hello")], ..Setup::default() }).await;
    let finished = finished(&harness).await;
    assert_eq!((finished.migrations, finished.migrated_inexact), (1, false));
}

#[tokio::test]
async fn tokens_and_models() {
    let harness = Harness::says("x").await;
    let mut client = client(&harness);
    let models = client.list_models(wire::ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!((models[0].name.as_str(), models[0].context_length), (MODEL, CONTEXT));
    let text = Some(wire::tokenize_request::Input::Text("é<|im_end|>".into()));
    let request = wire::TokenizeRequest { model: MODEL.into(), input: text };
    let ids = client.tokenize(request).await.unwrap().into_inner().token_ids;
    assert_eq!(ids, [0xc3, 0xa9, END]);
    let request = wire::DetokenizeRequest { model: MODEL.into(), token_ids: ids };
    assert_eq!(client.detokenize(request).await.unwrap().into_inner().text, "é<|im_end|>");
    let request = wire::DetokenizeRequest { model: MODEL.into(), token_ids: vec![u32::MAX] };
    let unknown = client.detokenize(request).await.unwrap_err();
    assert_eq!(Fault::from_status(&unknown).violations[0].0, "token_ids");
}
