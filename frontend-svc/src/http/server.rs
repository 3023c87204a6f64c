//! The HTTP server: routes, request ids, and from a body to an answer.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use armature_svc_kit::call::{Call, RequestId, X_REQUEST_ID};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use prometheus_client::metrics::counter::Counter;
use serde_json::json;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::answer::{Answers, Step};
use super::body::parsed;
use super::chat::ChatRequest;
use super::collect::collect;
use super::completions::CompletionRequest;
use super::error::ApiError;
use super::fields::Streaming;
use super::models;
use super::sse::{self, Api, Common, Events};
use crate::domain::pin::Pin;
use crate::domain::prompt::{Ask, Input};
use crate::session::answer::Opened;
use crate::session::caller::Caller;
use crate::session::generate::Generation;
use crate::session::pipeline::Pipeline;

/// What the handlers share.
#[derive(Clone)]
pub struct HttpApi {
    /// Where requests go.
    pub pipeline: Arc<Pipeline>,
    /// Longest body in bytes.
    pub max_body: usize,
    /// When this frontend started, seconds since 1970: what /v1/models calls "created".
    pub started: i64,
    /// Whether workers named in headers are asked for.
    pub follow_pins: bool,
}

impl HttpApi {
    fn caller(&self, call: Call, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let pin = || Pin::from_headers(|name| headers.get(name)?.to_str().ok());
        let pin = self.follow_pins.then(pin).flatten();
        Ok(Caller { pin, ..self.pipeline.caller(call, headers)? })
    }

    /// The routes.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/v1/chat/completions", post(chat))
            .route("/v1/completions", post(completions))
            .route("/v1/models", get(list_models))
            .route("/v1/models/{*name}", get(one_model))
            .route("/health", get(health))
            .route("/version", get(version))
            .fallback(no_such_path)
            .method_not_allowed_fallback(no_such_method)
            .with_state(self)
    }
}

async fn chat(State(api): State<HttpApi>, request: Request) -> Response {
    answered(&api.clone(), "chat_completions", request, async move |call, request: Request| {
        let (parts, body) = request.into_parts();
        let ChatRequest { ask, streaming } =
            parsed(&parts.headers, body, api.max_body, ChatRequest::parse).await?;
        let caller = api.caller(call, &parts.headers)?;
        answer(&api, caller, Api::Chat, vec![ask], streaming, false).await.map_err(|mut error| {
            if error.param.as_deref() == Some("logprobs") {
                error.param = Some("top_logprobs".to_owned());
            }
            error
        })
    })
    .await
}

async fn completions(State(api): State<HttpApi>, request: Request) -> Response {
    answered(&api.clone(), "completions", request, async move |call, request: Request| {
        let (parts, body) = request.into_parts();
        let CompletionRequest { asks, streaming, echo } =
            parsed(&parts.headers, body, api.max_body, CompletionRequest::parse).await?;
        let caller = api.caller(call, &parts.headers)?;
        answer(&api, caller, Api::Text, asks, streaming, echo).await
    })
    .await
}

async fn list_models(State(api): State<HttpApi>, request: Request) -> Response {
    answered(&api.clone(), "models", request, async move |_, _| {
        Ok(axum::Json(models::list(&api.pipeline.catalogue(), api.started)).into_response())
    })
    .await
}

async fn one_model(
    State(api): State<HttpApi>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    answered(&api.clone(), "models", request, async move |_, request: Request| {
        let Ok(Path(name)) = name else { return Err(no_such_path(request).await) };
        Ok(axum::Json(models::one(&api.pipeline.catalogue(), &name, api.started)?).into_response())
    })
    .await
}

async fn health() -> Response {
    axum::Json(json!({"status": "ok"})).into_response()
}

async fn version() -> Response {
    axum::Json(json!({"service": "frontend", "version": env!("CARGO_PKG_VERSION")})).into_response()
}

async fn no_such_path(request: Request) -> ApiError {
    let message = format!("there is no {} here", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn no_such_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Runs a handler inside its call and its span; a panic in it is a 500 of that request alone.
async fn answered<F>(
    api: &HttpApi,
    endpoint: &'static str,
    request: Request,
    handle: impl FnOnce(Call, Request) -> F,
) -> Response
where
    F: Future<Output = Result<Response, ApiError>>,
{
    let mut call = Call::from_headers(request.headers(), Instant::now());
    let id = call.request_id.get_or_insert_with(|| RequestId::from_random(api.pipeline.draw())).clone();
    let span = tracing::info_span!("http", endpoint, request_id = %id);
    if let Some(trace) = &call.trace {
        trace.set_parent_of(&span);
    }
    let handled = AssertUnwindSafe(handle(call.clone(), request)).catch_unwind();
    let result = call.scope(handled.instrument(span)).await;
    let mut response = match result {
        Ok(result) => result.unwrap_or_else(IntoResponse::into_response),
        Err(_) => {
            tracing::error!(endpoint, request_id = %id, "handler panicked");
            let message = "an internal error; the log has more under this request's id";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message).into_response()
        }
    };
    api.pipeline.metrics.answered(endpoint, response.status().as_u16());
    set_header(&mut response, X_REQUEST_ID, id.as_str());
    response
}

async fn answer(
    api: &HttpApi,
    caller: Caller,
    kind: Api,
    asks: Vec<Ask>,
    streaming: Streaming,
    echo: bool,
) -> Result<Response, ApiError> {
    let each = asks.first().map_or(1, |ask| ask.params.n);
    let logprobs = asks.first().is_some_and(|ask| ask.params.sampling.logprobs.is_some());
    let texts: Vec<Option<String>> = asks.iter().map(prompt_text).collect();
    let open = |ask| Box::pin(api.pipeline.open(ask, caller.clone()));
    let generations: Vec<Generation> = try_join_all(asks.into_iter().map(open)).await?;
    let Some(first) = generations.first() else {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", "there is no prompt"));
    };
    let set = first.request().set.clone();
    let opened = first.opened();
    let echo = if echo { echoes(texts, &generations) } else { Vec::new() };
    let prefix = match kind {
        Api::Chat => "chatcmpl",
        Api::Text => "cmpl",
    };
    let common = Common {
        api: kind,
        id: format!("{prefix}-{}", caller.request_id()),
        created: api.pipeline.unix_time(),
        model: first.request().model.clone(),
        fingerprint: format!("fp_{}", set.key.model),
        tokenizer: set.tokenizer.clone(),
        logprobs,
        echo,
    };
    let choices = each as usize * generations.len();
    let answers = Answers::new(generations, each);
    let mut response = if streaming.on {
        let mut response = Response::new(events(
            common,
            answers,
            choices,
            streaming.usage,
            api.pipeline.metrics.broken_streams.clone(),
        ));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    } else {
        axum::Json(collect(&common, answers, choices).await?).into_response()
    };
    name_workers(&mut response, &opened);
    Ok(response)
}

fn prompt_text(ask: &Ask) -> Option<String> {
    match &ask.input {
        Input::Text(text) => Some(text.clone()),
        Input::Tokens(_) | Input::Chat(_) => None,
    }
}

/// The prompts, as texts: those given as tokens are decoded.
fn echoes(texts: Vec<Option<String>>, generations: &[Generation]) -> Vec<String> {
    let decode = |(text, generation): (Option<String>, &Generation)| {
        let request = generation.request();
        text.unwrap_or_else(|| request.set.tokenizer.text(&request.tokens, request.skip_special_tokens))
    };
    texts.into_iter().zip(generations).map(decode).collect()
}

fn events(common: Common, answers: Answers, choices: usize, usage: bool, broken: Counter) -> Body {
    let state = Some((Events::new(common, choices, usage), answers, broken));
    Body::from_stream(stream::unfold(state, async |state| {
        let (mut events, mut answers, broken) = state?;
        let (frame, state) = match answers.next().await? {
            Ok(Step::Delta { prompt, delta }) => {
                (events.delta(prompt, &delta), Some((events, answers, broken)))
            }
            Ok(Step::Finished(summary)) => (events.end(&summary), None),
            Err(fault) => {
                broken.inc();
                (sse::error(&ApiError::from(fault)), None)
            }
        };
        Some((Ok::<_, Infallible>(Bytes::from(frame)), state))
    }))
}

fn name_workers(response: &mut Response, opened: &Opened) {
    let names = [
        ("x-armature-decode-worker", &opened.decode_worker),
        ("x-armature-prefill-worker", &opened.prefill_worker),
        ("x-armature-decision-id", &opened.decision_id),
    ];
    for (name, value) in names.into_iter().filter(|(_, value)| !value.is_empty()) {
        set_header(response, HeaderName::from_static(name), value);
    }
}

fn set_header(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
