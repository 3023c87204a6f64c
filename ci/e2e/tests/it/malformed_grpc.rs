//! Whatever comes over gRPC that cannot be served is refused with a field violation, before a stream begins.

use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1 as wire;
use armature_contracts::inference::v1::generate_request::Input;
use armature_contracts::inference::v1::inference_service_client::InferenceServiceClient;
use armature_e2e::suite::Suite;
use tokio_stream::StreamExt;
use tonic::Code;
use wire::{GenerateRequest, SamplingParams, StopConditions};

fn good() -> GenerateRequest {
    GenerateRequest {
        model: "sim".into(),
        input: Some(Input::Text("Hi".into())),
        stop: Some(StopConditions { max_tokens: Some(4), ..Default::default() }),
        ..Default::default()
    }
}

fn table() -> Vec<(GenerateRequest, &'static str)> {
    let sampling = |sampling| GenerateRequest { sampling: Some(sampling), ..good() };
    let stop = |stop| GenerateRequest { stop: Some(stop), ..good() };
    let input = |input| GenerateRequest { input: Some(input), ..good() };
    let messages = |messages| input(Input::Messages(wire::ChatMessages { messages }));
    let ids = |token_ids| input(Input::TokenIds(wire::TokenIds { token_ids }));
    let mut table = Vec::new();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1.0] {
        let none = SamplingParams::default();
        table.extend([
            (sampling(SamplingParams { temperature: Some(value), ..none.clone() }), "sampling.temperature"),
            (sampling(SamplingParams { top_p: Some(value), ..none.clone() }), "sampling.top_p"),
            (sampling(SamplingParams { min_p: Some(value), ..none.clone() }), "sampling.min_p"),
            (
                sampling(SamplingParams { presence_penalty: Some(value * 3.0), ..none.clone() }),
                "sampling.presence_penalty",
            ),
            (
                sampling(SamplingParams { frequency_penalty: Some(value * 3.0), ..none.clone() }),
                "sampling.frequency_penalty",
            ),
            (
                sampling(SamplingParams { repetition_penalty: Some(value), ..none.clone() }),
                "sampling.repetition_penalty",
            ),
            (
                sampling(SamplingParams { logit_bias: [(65, value * 101.0)].into(), ..none }),
                "sampling.logit_bias.65",
            ),
        ]);
    }
    table.extend([
        (
            sampling(SamplingParams { logit_bias: [(259, 1.0)].into(), ..Default::default() }),
            "sampling.logit_bias",
        ),
        (sampling(SamplingParams { logprobs: Some(21), ..Default::default() }), "sampling.logprobs"),
        (stop(StopConditions { max_tokens: Some(0), ..Default::default() }), "stop.max_tokens"),
        (
            stop(StopConditions { max_tokens: Some(2), min_tokens: 3, ..Default::default() }),
            "stop.min_tokens",
        ),
        (stop(StopConditions { stop_token_ids: vec![259], ..Default::default() }), "stop.stop_token_ids"),
        (stop(StopConditions { stop_token_ids: vec![1; 65], ..Default::default() }), "stop.stop_token_ids"),
        (stop(StopConditions { max_tokens: Some(u32::MAX), ..Default::default() }), "text"),
        (GenerateRequest { n: Some(0), ..good() }, "n"),
        (GenerateRequest { n: Some(u32::MAX), ..good() }, "n"),
        (GenerateRequest { stop_strings: vec![String::new()], ..good() }, "stop_strings"),
        (GenerateRequest { stop_strings: vec!["x".into(); 17], ..good() }, "stop_strings"),
        (GenerateRequest { cache_salt: "x".repeat(257), ..good() }, "cache_salt"),
        (GenerateRequest { input: None, ..good() }, "input"),
        (GenerateRequest { model: String::new(), ..good() }, "model"),
        (GenerateRequest::default(), "model"),
        (messages(Vec::new()), "messages"),
        (messages(vec![wire::ChatMessage::default()]), "messages[0].role"),
        (input(Input::Text(String::new())), "text"),
        (input(Input::Text("x".repeat(40_000))), "text"),
        (ids(Vec::new()), "token_ids"),
        (ids(vec![259]), "token_ids"),
        (ids(vec![1; 40_000]), "token_ids"),
    ]);
    table
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let suite = Suite::sim().await;
    let mut client = InferenceServiceClient::connect(format!("http://{}", suite.grpc)).await.unwrap();
    for (request, field) in table() {
        let what = format!("{field} of {request:.300?}");
        let status = client.generate(request).await.map(|_| ()).expect_err(&what);
        let fault = Fault::from_status(&status);
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
        let fields: Vec<&str> = fault.violations.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, [field], "{what}: {status:?}");
    }
    let unknown = GenerateRequest { model: "no such model".into(), ..good() };
    let fault = Fault::from_status(&client.generate(unknown).await.map(|_| ()).unwrap_err());
    assert_eq!((fault.reason, fault.violations[0].0.as_str()), (Reason::ModelNotFound, "model"));

    let tokenize = |model: &str, input| wire::TokenizeRequest { model: model.into(), input };
    let text = || Some(wire::tokenize_request::Input::Text("x".into()));
    let status = client.tokenize(tokenize("sim", None)).await.unwrap_err();
    assert_eq!(
        (status.code(), Fault::from_status(&status).violations[0].0.as_str()),
        (Code::InvalidArgument, "input")
    );
    assert_eq!(client.tokenize(tokenize("no such model", text())).await.unwrap_err().code(), Code::NotFound);
    let detokenize = wire::DetokenizeRequest { model: "sim".into(), token_ids: vec![u32::MAX] };
    let status = client.detokenize(detokenize).await.unwrap_err();
    assert_eq!(
        (status.code(), Fault::from_status(&status).violations[0].0.as_str()),
        (Code::InvalidArgument, "token_ids")
    );

    let mut answer = client.generate(good()).await.unwrap().into_inner();
    let mut finished = None;
    while let Some(message) = answer.next().await {
        if let Some(wire::generate_response::Event::Finished(event)) = message.unwrap().event {
            finished = Some(event);
        }
    }
    assert_eq!(finished.unwrap().usage.unwrap().completion_tokens, 4);
    suite.idle().await;
}
