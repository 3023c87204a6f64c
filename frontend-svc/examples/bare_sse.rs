//! The least that an HTTP server can do for a streamed completion, as a baseline: it reads the JSON body and answers
//! `max_tokens` events of a fixed size, one per period. No routing, tokenizer, template or stop strings.
//!
//! `bare_sse ADDRESS PERIOD_MICROSECONDS`

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, Bytes};
use axum::response::Response;
use axum::routing::post;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use futures_util::StreamExt as _;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::IntervalStream;

const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
    \"created\":1770000000,\"model\":\"sim\",\"system_fingerprint\":\"fp_0123456789abcdef\",\"choices\":[{\"index\":0,\
    \"delta\":{\"content\":\"a\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

fn answer(body: &serde_json::Value, period: Duration) -> Response {
    let tokens = body["max_tokens"].as_u64().unwrap_or(1);
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let events = IntervalStream::new(ticks).take(tokens as usize).map(|_| Bytes::from_static(EVENT));
    let done = futures_util::stream::iter([Bytes::from_static(b"data: [DONE]\n\n")]);
    let mut response = Response::new(Body::from_stream(events.chain(done).map(Ok::<_, Infallible>)));
    let event_stream = http::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(http::header::CONTENT_TYPE, event_stream);
    response
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().context("the address to listen at")?;
    let period = Duration::from_micros(arguments.next().context("microseconds between events")?.parse()?);
    let handler = move |Json(body): Json<serde_json::Value>| async move { answer(&body, period) };
    let listener = tokio::net::TcpListener::bind(address).await?.tap_io(|stream| {
        // A small write must not wait for the acknowledgement of the last one.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, Router::new().route("/v1/chat/completions", post(handler))).await?;
    Ok(())
}
