//! The Endpoint Picker, asked by a client that sends what Envoy sends.

use std::collections::BTreeMap;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::{InstanceId, WorkerRank};
use armature_contracts::inference::v1::RequestContext;
use armature_frontend::config::{Config, GatewayConfig};
use armature_frontend::gateway::wire;
use armature_frontend::gateway::wire::BodySendMode::{self, Buffered, FullDuplexStreamed, Streamed};
use armature_frontend::gateway::wire::body_mutation::Mutation;
use armature_frontend::gateway::wire::external_processor_client::ExternalProcessorClient;
use armature_frontend::gateway::wire::processing_request::Request as Say;
use armature_frontend::gateway::wire::processing_response::Response as Heard;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use bytes::Bytes;
use prost_types::value::Kind;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::harness::{Harness, MODEL, Setup, says};

const FIRST: u64 = 0xa1;
const SECOND: u64 = 0xa2;

/// An HTTP request on its way through a gateway. Stands in for Envoy, which is not at hand.
struct ScriptedEnvoy {
    say: Option<mpsc::UnboundedSender<wire::ProcessingRequest>>,
    hear: Streaming<wire::ProcessingResponse>,
    modes: Option<wire::ProtocolConfiguration>,
}

impl ScriptedEnvoy {
    async fn connect(harness: &Harness, mode: BodySendMode) -> Self {
        let channels = Channels::new(harness.network.clone(), ChannelOptions::default()).unwrap();
        let mut client = ExternalProcessorClient::new(channels.to(&Address::mem("gateway")));
        let (say, said) = mpsc::unbounded_channel();
        let hear = client.process(UnboundedReceiverStream::new(said)).await.unwrap().into_inner();
        let modes =
            wire::ProtocolConfiguration { request_body_mode: mode.into(), response_body_mode: mode.into() };
        Self { say: Some(say), hear, modes: Some(modes) }
    }

    fn say(&mut self, request: Say) {
        let protocol_config = self.modes.take();
        let message =
            wire::ProcessingRequest { request: Some(request), protocol_config, observability_mode: false };
        // A stream that is over takes nothing more.
        let _ = self.say.as_ref().unwrap().send(message);
    }

    async fn hear(&mut self) -> Option<Result<wire::ProcessingResponse, Status>> {
        let heard = tokio::time::timeout(Duration::from_secs(20), self.hear.message()).await;
        heard.expect("an answer in time").transpose()
    }

    async fn answer(&mut self) -> (Heard, Option<String>) {
        let answer = self.hear().await.expect("an answer").unwrap();
        let metadata = answer.dynamic_metadata.and_then(|metadata| {
            let Some(Kind::StructValue(inner)) = metadata.fields.get("envoy.lb")?.kind.clone() else {
                return None;
            };
            match inner.fields.get("x-gateway-destination-endpoint")?.kind.clone()? {
                Kind::StringValue(endpoint) => Some(endpoint),
                _ => None,
            }
        });
        (answer.response.unwrap(), metadata)
    }

    fn request(&mut self, method: &str, path: &str, extra: &[(&str, &str)], ends: bool) {
        let fields = [
            (":method", method),
            (":path", path),
            (":authority", "models"),
            ("content-type", "application/json"),
        ];
        self.say(Say::RequestHeaders(wire::HttpHeaders {
            headers: Some(headers(fields.iter().chain(extra))),
            end_of_stream: ends,
        }));
    }

    fn body(&mut self, bytes: impl Into<Bytes>, ends: bool) {
        self.say(Say::RequestBody(wire::HttpBody { body: bytes.into(), end_of_stream: ends }));
    }

    async fn refused(&mut self) -> (u32, BTreeMap<String, String>, Value) {
        let (Heard::ImmediateResponse(it), _) = self.answer().await else { panic!("it is not refused") };
        let body = serde_json::from_slice(&it.body).unwrap();
        assert!(self.hear().await.is_none(), "nothing follows");
        (it.status.unwrap().code, set(it.headers), body)
    }
}

fn headers<'a>(fields: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> wire::HeaderMap {
    let header = |(key, value): &(&str, &str)| wire::HeaderValue {
        key: (*key).into(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    wire::HeaderMap { headers: fields.into_iter().map(header).collect() }
}

fn set(mutation: Option<wire::HeaderMutation>) -> BTreeMap<String, String> {
    let read = |it: wire::HeaderValueOption| {
        let header = it.header.unwrap();
        (header.key, String::from_utf8(header.raw_value.to_vec()).unwrap())
    };
    mutation.unwrap_or_default().set_headers.into_iter().map(read).collect()
}

fn piece(heard: Heard) -> wire::StreamedBodyResponse {
    let (Heard::RequestBody(it) | Heard::ResponseBody(it)) = heard else { panic!("{heard:?}") };
    let Some(Mutation::StreamedResponse(piece)) = it.response.unwrap().body_mutation.unwrap().mutation else {
        panic!("no piece")
    };
    piece
}

fn config() -> Config {
    let gateway = GatewayConfig { listen: Some(Address::mem("gateway")), ..GatewayConfig::default() };
    Config { gateway, hold_seconds: 0, ..Config::default() }
}

async fn harness() -> Harness {
    Harness::start(Setup { workers: vec![says("one"), says("two")], config: config(), ..Setup::default() })
        .await
}

fn chat() -> String {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "What is a river?"}]}).to_string()
}

fn rank(id: u64) -> String {
    WorkerRank::first(InstanceId(id)).to_string()
}

#[tokio::test]
async fn a_buffered_request_is_sent_to_a_frontend_with_its_workers() {
    let harness = harness().await;
    let mut envoy = ScriptedEnvoy::connect(&harness, Buffered).await;
    envoy.request(
        "POST",
        "/v1/chat/completions?x=1",
        &[("x-armature-pin-prefill", "00000000000000ff")],
        false,
    );
    let (Heard::RequestHeaders(first), None) = envoy.answer().await else { panic!("not to the headers") };
    assert_eq!(first.response.unwrap().header_mutation, None, "nothing is known before the body");
    envoy.body(chat(), true);
    let (Heard::RequestBody(it), metadata) = envoy.answer().await else { panic!("not to the body") };
    let mutation = it.response.unwrap().header_mutation.unwrap();
    assert_eq!(mutation.remove_headers, ["x-armature-pin-prefill"], "the client's own is not followed");
    let set = set(Some(mutation));
    assert_eq!(set["x-gateway-destination-endpoint"], harness.running.http);
    assert_eq!(set["x-armature-pin-decode"], rank(FIRST));
    assert_eq!(set["x-armature-decision-id"], "router-1-1");
    assert_eq!(metadata.as_ref(), Some(&harness.running.http));

    // The same prompt is hashed alike on both ways.
    let asked = harness.router().asked().pop().unwrap();
    let answer =
        harness.client().await.post("/v1/chat/completions", &serde_json::from_str(&chat()).unwrap()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(harness.router().asked().pop().unwrap().prompt, asked.prompt);

    // It is given back when the response begins: the frontend has its own by then.
    let key = asked.context.unwrap().reservation.unwrap();
    assert!(!harness.router().released.borrow().contains(&key));
    envoy.say(Say::ResponseHeaders(wire::HttpHeaders { headers: None, end_of_stream: false }));
    assert!(matches!(envoy.answer().await.0, Heard::ResponseHeaders(_)));
    let mut released = harness.router().released.subscribe();
    released.wait_for(|keys| keys.contains(&key)).await.unwrap();
    envoy.say(Say::ResponseBody(wire::HttpBody { body: Bytes::from_static(b"data"), end_of_stream: true }));
    assert!(matches!(envoy.answer().await.0, Heard::ResponseBody(_)));
    assert!(envoy.hear().await.is_none());
}

#[tokio::test]
async fn a_streamed_request_goes_on_unchanged_in_pieces() {
    let harness = harness().await;
    let mut envoy = ScriptedEnvoy::connect(&harness, FullDuplexStreamed).await;
    let content = "x ".repeat(70_000);
    let body = json!({"model": MODEL, "prompt": [1, 2, 3], "user": content}).to_string();
    envoy.request("POST", "/v1/completions", &[], false);
    for part in body.as_bytes().chunks(50_000) {
        envoy.body(part.to_vec(), false);
    }
    // Trailers end the body as well.
    envoy.say(Say::RequestTrailers(wire::HttpTrailers { trailers: None }));
    let (Heard::RequestHeaders(it), metadata) = envoy.answer().await else { panic!("headers come first") };
    assert_eq!(set(it.response.unwrap().header_mutation)["x-armature-pin-decode"], rank(FIRST));
    assert_eq!(metadata.as_ref(), Some(&harness.running.http));
    let mut back = Vec::new();
    loop {
        match envoy.answer().await.0 {
            Heard::RequestTrailers(_) => break,
            heard => {
                let piece = piece(heard);
                assert!(piece.body.len() <= 64 * 1024 && !piece.end_of_stream);
                back.extend_from_slice(&piece.body);
            }
        }
    }
    assert_eq!(back, body.as_bytes());
    envoy.say(Say::ResponseHeaders(wire::HttpHeaders { headers: None, end_of_stream: false }));
    assert!(matches!(envoy.answer().await.0, Heard::ResponseHeaders(_)));
    for (text, ends) in [("data: 1\n\n", false), ("", true)] {
        envoy.say(Say::ResponseBody(wire::HttpBody { body: Bytes::from(text), end_of_stream: ends }));
        let piece = piece(envoy.answer().await.0);
        assert_eq!((piece.body, piece.end_of_stream), (Bytes::from(text), ends));
    }
    assert!(envoy.hear().await.is_none());
}

#[tokio::test]
async fn an_engine_behind_an_adapter_is_reached_directly() {
    let harness = harness().await;
    let mut adapter = crate::harness::instance(
        FIRST,
        armature_contracts::discovery::v1::Component::Worker,
        "worker-a1",
        harness.card.clone(),
    );
    adapter.addresses.insert("http".into(), "10.0.0.7:8000".into());
    adapter.lease_epoch = 2;
    harness.discovery.put(adapter);
    let mut envoy = loop {
        let mut envoy = ScriptedEnvoy::connect(&harness, Buffered).await;
        envoy.request("POST", "/v1/chat/completions", &[], false);
        envoy.answer().await;
        envoy.body(chat(), true);
        let (Heard::RequestBody(it), metadata) = envoy.answer().await else { panic!("not to the body") };
        let mutation = it.response.unwrap().header_mutation.unwrap();
        // The view comes a moment after the registry has it.
        if metadata.as_deref() != Some("10.0.0.7:8000") {
            assert_eq!(metadata.as_ref(), Some(&harness.running.http));
            continue;
        }
        assert_eq!(mutation.remove_headers, ["x-armature-pin-decode", "x-armature-pin-prefill"]);
        assert_eq!(set(Some(mutation))["x-gateway-destination-endpoint"], "10.0.0.7:8000");
        break envoy;
    };
    // A request that never reaches a worker: the gateway's client went away.
    let key = harness.router().asked().pop().unwrap().context.unwrap().reservation.unwrap();
    envoy.say = None;
    drop(envoy);
    let mut released = harness.router().released.subscribe();
    released.wait_for(|keys| keys.contains(&key)).await.unwrap();
}

#[tokio::test]
async fn what_needs_no_decision_goes_to_a_frontend() {
    let harness = harness().await;
    for (method, path, ends) in [
        ("GET", "/v1/models", true),
        ("POST", "/v1/embeddings", false),
        ("GET", "/v1/chat/completions", true),
    ] {
        let mut envoy = ScriptedEnvoy::connect(&harness, FullDuplexStreamed).await;
        envoy.request(method, path, &[], ends);
        let (Heard::RequestHeaders(it), metadata) = envoy.answer().await else {
            panic!("not to the headers")
        };
        assert_eq!(metadata.as_ref(), Some(&harness.running.http));
        assert_eq!(set(it.response.unwrap().header_mutation).len(), 1);
        if !ends {
            envoy.body("{}", true);
            assert_eq!(piece(envoy.answer().await.0).body, "{}");
        }
    }
    assert!(harness.router().asked().is_empty());
}

#[tokio::test]
async fn refusals_are_answers_to_the_client() {
    let harness = harness().await;
    let refused = async |mode, body: String| {
        let mut envoy = ScriptedEnvoy::connect(&harness, mode).await;
        envoy.request("POST", "/v1/chat/completions", &[], false);
        if mode == Buffered {
            envoy.answer().await;
        }
        envoy.body(body, true);
        envoy.refused().await
    };
    let cases = [
        (Fault::new(Reason::NoWorkers, "nobody"), 503, Some("1")),
        (
            Fault::new(Reason::AllWorkersBusy, "all busy").retry_after(Duration::from_millis(2100)),
            429,
            Some("3"),
        ),
    ];
    for (fault, status, retry) in cases {
        *harness.router().refusal.lock().unwrap() = Some(fault.clone());
        for mode in [Buffered, FullDuplexStreamed] {
            let (code, headers, body) = refused(mode, chat()).await;
            assert_eq!((code, headers.get("retry-after").map(String::as_str)), (status, retry));
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(body["error"]["message"], fault.message);
        }
    }
    *harness.router().refusal.lock().unwrap() = None;
    let unknown = json!({"model": "nobody", "messages": [{"role": "user", "content": "x"}]}).to_string();
    assert_eq!(refused(Buffered, unknown).await.0, 404);
    let (code, _, body) = refused(FullDuplexStreamed, "{\"model\": ".into()).await;
    assert_eq!((code, body["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    let limit = Config::default().max_body_bytes;
    // A body over the limit, in pieces that a gRPC message can hold.
    let mut envoy = ScriptedEnvoy::connect(&harness, FullDuplexStreamed).await;
    envoy.request("POST", "/v1/chat/completions", &[], false);
    for _ in 0..=limit >> 20 {
        envoy.body(vec![b'x'; 1 << 20], false);
    }
    assert_eq!(envoy.refused().await.0, 413);
}

#[tokio::test]
async fn a_gateway_that_sends_headers_on_before_the_body_is_told_what_to_change() {
    let harness = harness().await;
    for mode in [Streamed, BodySendMode::None, BodySendMode::BufferedPartial] {
        let mut envoy = ScriptedEnvoy::connect(&harness, mode).await;
        envoy.request("POST", "/v1/chat/completions", &[], false);
        let (code, _, body) = envoy.refused().await;
        assert_eq!(code, 500);
        assert!(body["error"]["message"].as_str().unwrap().contains("FULL_DUPLEX_STREAMED"), "{body}");
    }
    // One that does not say how it sends, and sends pieces.
    let mut envoy = ScriptedEnvoy::connect(&harness, Buffered).await;
    envoy.modes = None;
    envoy.request("POST", "/v1/chat/completions", &[], false);
    envoy.answer().await;
    envoy.body("{", false);
    assert_eq!(envoy.refused().await.0, 500);
    // Messages out of order.
    let mut envoy = ScriptedEnvoy::connect(&harness, FullDuplexStreamed).await;
    envoy.body(chat(), true);
    assert_eq!(envoy.refused().await.0, 500);
}

#[tokio::test]
async fn pins_are_followed_and_given_up_when_their_workers_cannot() {
    let harness = harness().await;
    let mut client = harness.client().await;
    let body = serde_json::from_str(&chat()).unwrap();
    let answer =
        client.post_with("/v1/chat/completions", &[("x-armature-pin-decode", &rank(SECOND))], &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-armature-decode-worker"), Some(rank(SECOND).as_str()));
    let gone = rank(0xff);
    let answer = client.post_with("/v1/chat/completions", &[("x-armature-pin-decode", &gone)], &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-armature-decode-worker"), Some(rank(FIRST).as_str()));
    let asked = harness.router().asked();
    let [pinned, free] = &asked[asked.len() - 2..] else { panic!("asked once") };
    let (pinned_as, free_as) = (pinned.context.as_ref().unwrap(), free.context.as_ref().unwrap());
    assert_eq!(pinned_as.reservation, free_as.reservation);
    let wait = |context: &RequestContext| context.budget.unwrap().max_queue.unwrap();
    assert!(wait(pinned_as) == Default::default() && wait(free_as).seconds > 0, "others may have room");
    assert!(free.constraints.as_ref().unwrap().pin_decode.is_none());
}

#[tokio::test]
async fn without_a_gateway_pins_are_not_followed() {
    let harness = Harness::says("Hello").await;
    let body = serde_json::from_str(&chat()).unwrap();
    let header = [("x-armature-pin-decode", rank(SECOND))];
    let header = header.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = harness.client().await.post_with("/v1/chat/completions", &header, &body).await;
    assert_eq!(answer.status, 200);
    assert!(harness.router().asked()[0].constraints.as_ref().unwrap().pin_decode.is_none());
}

#[tokio::test]
async fn its_health_can_be_asked_for() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let harness = harness().await;
    let channels = Channels::new(harness.network.clone(), ChannelOptions::default()).unwrap();
    let mut client = HealthClient::new(channels.to(&Address::mem("gateway")));
    let service = "envoy.service.ext_proc.v3.ExternalProcessor".to_owned();
    let health = client.check(HealthCheckRequest { service }).await.unwrap();
    assert_eq!(health.get_ref().status(), ServingStatus::Serving);
    let unknown = client.check(HealthCheckRequest { service: "none".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}
