//! One HTTP request of Envoy's: what is answered to which message, in what order.
//!
//! Envoy sends bodies in one of two ways. BUFFERED: whole, and each message is answered by one. FULL_DUPLEX_STREAMED: in pieces, and what
//! is to go on is sent back in pieces; the answer to the headers waits until the body has told where the request goes. Other ways send
//! the headers on before the body is there, and are refused with what to change.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::picked::{Destination, refusal};
use super::wire::processing_request::Request as Said;
use super::wire::processing_response::Response as Answer;
use super::wire::{self, BodySendMode};
use crate::http::error::ApiError;

/// Longest piece of a body sent back: Envoy takes at most 64 KiB.
const PIECE: usize = 62_000;

/// An API whose requests are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// POST /v1/chat/completions.
    Chat,
    /// POST /v1/completions.
    Completions,
}

/// A request that waits to be told where it goes.
#[derive(Debug)]
pub struct Asked {
    /// Which API.
    pub endpoint: Endpoint,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its whole body.
    pub body: Bytes,
}

/// What comes of a message.
#[derive(Debug)]
pub enum Step {
    /// These are answered, perhaps none.
    Answers(Vec<wire::ProcessingResponse>),
    /// The request is complete: answer with [`Exchange::decided`].
    Decide(Box<Asked>),
}

/// How far a request is.
#[derive(Debug)]
enum Phase {
    /// Its headers are awaited.
    Headers,
    /// Its body is read.
    Body { endpoint: Endpoint, headers: HeaderMap, body: BytesMut },
    /// Its destination is awaited.
    Deciding { body: Bytes, trailers: bool },
    /// It goes on as it comes.
    On,
    /// It was answered here.
    Over,
}

/// One HTTP request and its response.
#[derive(Debug)]
pub struct Exchange {
    phase: Phase,
    request: BodySendMode,
    response: BodySendMode,
    /// The modes, until the first message has told them.
    told: bool,
    max_body: usize,
    /// Where requests go that need no decision.
    frontend: String,
    answered: bool,
    ended: bool,
}

impl Exchange {
    /// Before its first message. Bodies have at most `max_body` bytes; `frontend` is the HTTP address of a frontend.
    pub fn new(max_body: usize, frontend: &str) -> Self {
        Self {
            phase: Phase::Headers,
            request: BodySendMode::Buffered,
            response: BodySendMode::Buffered,
            told: false,
            max_body,
            frontend: frontend.to_owned(),
            answered: false,
            ended: false,
        }
    }

    /// Whether the server's response has begun.
    pub fn answered(&self) -> bool {
        self.answered
    }

    /// Whether nothing more comes of it.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Takes a message.
    pub fn take(&mut self, message: wire::ProcessingRequest) -> Step {
        if !std::mem::replace(&mut self.told, true)
            && let Some(modes) = message.protocol_config
        {
            (self.request, self.response) = (modes.request_body_mode(), modes.response_body_mode());
        }
        let Some(said) = message.request.filter(|_| !matches!(self.phase, Phase::Over)) else {
            return Step::Answers(Vec::new());
        };
        let step = match said {
            Said::RequestHeaders(headers) => self.request_headers(headers),
            Said::RequestBody(body) => self.request_body(body),
            Said::RequestTrailers(_) => self.request_trailers(),
            said => Step::Answers(self.response(said)),
        };
        match step {
            Step::Answers(answers) if message.observability_mode => {
                drop(answers);
                Step::Answers(Vec::new())
            }
            step => step,
        }
    }

    fn request_headers(&mut self, said: wire::HttpHeaders) -> Step {
        if !matches!(self.phase, Phase::Headers) {
            return self.refused(misuse("headers came twice"));
        }
        let fields = said.headers.unwrap_or_default();
        let text = |name: &str| {
            let found = fields.headers.iter().find(|it| it.key.eq_ignore_ascii_case(name));
            found.map(|it| String::from_utf8_lossy(bytes_of(it)).into_owned()).unwrap_or_default()
        };
        let path = text(":path");
        let endpoint = match path.split('?').next().unwrap_or_default() {
            "/v1/chat/completions" => Some(Endpoint::Chat),
            "/v1/completions" => Some(Endpoint::Completions),
            _ => None,
        };
        let endpoint = endpoint.filter(|_| text(":method") == Method::POST.as_str() && !said.end_of_stream);
        let Some(endpoint) = endpoint else {
            self.phase = Phase::On;
            let to = Destination::frontend(&self.frontend);
            return Step::Answers(vec![to_headers(Some(&to))]);
        };
        self.phase = Phase::Body { endpoint, headers: headers_of(&fields), body: BytesMut::new() };
        match self.request {
            // The answer waits for the body.
            BodySendMode::FullDuplexStreamed => Step::Answers(Vec::new()),
            BodySendMode::Buffered => Step::Answers(vec![to_headers(None)]),
            mode => self.refused(mode_refused(mode)),
        }
    }

    fn request_body(&mut self, said: wire::HttpBody) -> Step {
        let limit = self.max_body;
        match &mut self.phase {
            Phase::Body { body, .. } => {
                if body.len() + said.body.len() > limit {
                    let message = format!("the body is longer than the limit of {limit} bytes");
                    return self.refused(ApiError::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "body_too_large",
                        message,
                    ));
                }
                body.extend_from_slice(&said.body);
                if said.end_of_stream {
                    return self.complete(false);
                }
                match self.request {
                    BodySendMode::FullDuplexStreamed => Step::Answers(Vec::new()),
                    // A buffered body comes whole; in pieces it is streamed, by a gateway that does not say so.
                    _ => self.refused(mode_refused(BodySendMode::Streamed)),
                }
            }
            Phase::On => Step::Answers(passed(self.request, said, Answer::RequestBody)),
            _ => self.refused(misuse("a body came before headers, or after its end")),
        }
    }

    fn request_trailers(&mut self) -> Step {
        match self.phase {
            Phase::Body { .. } => self.complete(true),
            Phase::On => Step::Answers(vec![answer(Answer::RequestTrailers(wire::TrailersResponse {}))]),
            _ => self.refused(misuse("trailers came before headers, or twice")),
        }
    }

    fn complete(&mut self, trailers: bool) -> Step {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        let Phase::Body { endpoint, headers, body } = phase else { return Step::Answers(Vec::new()) };
        let body = body.freeze();
        self.phase = Phase::Deciding { body: body.clone(), trailers };
        Step::Decide(Box::new(Asked { endpoint, headers, body }))
    }

    /// Takes the decision, and answers all that waited for it.
    pub fn decided(&mut self, decision: Result<&Destination, ApiError>) -> Vec<wire::ProcessingResponse> {
        let to = match decision {
            Ok(to) => to,
            Err(error) => return self.immediate(&error),
        };
        let Phase::Deciding { body, trailers } = std::mem::replace(&mut self.phase, Phase::On) else {
            return Vec::new();
        };
        let mut answers = Vec::new();
        if self.request == BodySendMode::FullDuplexStreamed {
            answers.push(to_headers(Some(to)));
            answers.extend(pieces(&body, !trailers, Answer::RequestBody));
        } else {
            let response = common(Some(to.mutation()), None);
            let mut whole = answer(Answer::RequestBody(wire::BodyResponse { response: Some(response) }));
            whole.dynamic_metadata = Some(to.metadata());
            answers.push(whole);
        }
        if trailers {
            answers.push(answer(Answer::RequestTrailers(wire::TrailersResponse {})));
        }
        answers
    }

    fn response(&mut self, said: Said) -> Vec<wire::ProcessingResponse> {
        self.answered = true;
        match said {
            Said::ResponseHeaders(headers) => {
                self.ended |= headers.end_of_stream;
                let response = Some(common(None, None));
                vec![answer(Answer::ResponseHeaders(wire::HeadersResponse { response }))]
            }
            Said::ResponseBody(body) => {
                self.ended |= body.end_of_stream;
                passed(self.response, body, Answer::ResponseBody)
            }
            _ => {
                self.ended = true;
                vec![answer(Answer::ResponseTrailers(wire::TrailersResponse {}))]
            }
        }
    }

    fn refused(&mut self, error: ApiError) -> Step {
        Step::Answers(self.immediate(&error))
    }

    fn immediate(&mut self, error: &ApiError) -> Vec<wire::ProcessingResponse> {
        self.phase = Phase::Over;
        self.ended = true;
        vec![answer(Answer::ImmediateResponse(refusal(error)))]
    }
}

fn misuse(what: &str) -> ApiError {
    let message = format!("the gateway broke the order of external processing: {what}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "gateway_protocol", message)
}

fn mode_refused(mode: BodySendMode) -> ApiError {
    let message = format!(
        "the gateway sends request bodies as {}: set request_body_mode of its ext_proc filter to FULL_DUPLEX_STREAMED (with \
         request_trailer_mode SEND) or BUFFERED",
        mode.as_str_name()
    );
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "gateway_body_mode", message)
}

fn bytes_of(header: &wire::HeaderValue) -> &[u8] {
    if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value }
}

/// The fields, less Envoy's pseudo-headers and what is none in HTTP.
fn headers_of(fields: &wire::HeaderMap) -> HeaderMap {
    let read = |it: &wire::HeaderValue| {
        let name = HeaderName::from_bytes(it.key.as_bytes()).ok()?;
        Some((name, HeaderValue::from_bytes(bytes_of(it)).ok()?))
    };
    fields.headers.iter().filter_map(read).collect()
}

fn answer(response: Answer) -> wire::ProcessingResponse {
    wire::ProcessingResponse { response: Some(response), dynamic_metadata: None }
}

fn common(headers: Option<wire::HeaderMutation>, body: Option<wire::BodyMutation>) -> wire::CommonResponse {
    let clear_route_cache = headers.is_some();
    wire::CommonResponse { header_mutation: headers, body_mutation: body, clear_route_cache }
}

fn to_headers(to: Option<&Destination>) -> wire::ProcessingResponse {
    let response = Some(common(to.map(Destination::mutation), None));
    let mut it = answer(Answer::RequestHeaders(wire::HeadersResponse { response }));
    it.dynamic_metadata = to.map(Destination::metadata);
    it
}

/// The answer to a piece of a body that goes on unchanged.
fn passed(
    mode: BodySendMode,
    said: wire::HttpBody,
    kind: fn(wire::BodyResponse) -> Answer,
) -> Vec<wire::ProcessingResponse> {
    match mode {
        BodySendMode::FullDuplexStreamed => pieces(&said.body, said.end_of_stream, kind),
        _ => vec![answer(kind(wire::BodyResponse { response: Some(common(None, None)) }))],
    }
}

/// `body` in pieces that Envoy takes; the last one says so when it `ends` the message.
fn pieces(body: &Bytes, ends: bool, kind: fn(wire::BodyResponse) -> Answer) -> Vec<wire::ProcessingResponse> {
    let count = body.len().div_ceil(PIECE).max(1);
    let piece = |i: usize| {
        let body = body.slice(i * PIECE..body.len().min((i + 1) * PIECE));
        let streamed = wire::StreamedBodyResponse { body, end_of_stream: ends && i + 1 == count };
        let mutation = wire::body_mutation::Mutation::StreamedResponse(streamed);
        let response = common(None, Some(wire::BodyMutation { mutation: Some(mutation) }));
        answer(kind(wire::BodyResponse { response: Some(response) }))
    };
    (0..count).map(piece).collect()
}
