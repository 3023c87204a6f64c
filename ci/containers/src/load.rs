//! Streams without a pause, each compared with what the same request said before anything was broken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use armature_e2e::client::{Client, chunk_text};
use armature_e2e::wait_until;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

/// Different requests; each is repeated.
const REQUESTS: usize = 12;
/// Streams at a time.
const STREAMS: usize = 4;
/// Tokens of a stream: some of them are always in flight, and a busy machine still ends a round of them in time.
const TOKENS: u32 = 128;

/// A running load.
#[derive(Debug)]
pub struct Load {
    stop: CancellationToken,
    finished: Arc<AtomicU64>,
    tasks: JoinSet<Vec<String>>,
}

impl Load {
    /// Records what every request says, then sends them over and over.
    ///
    /// # Panics
    /// When one fails already now.
    pub async fn start(client: &Client, model: &str) -> Self {
        let bodies: Vec<Value> = (0..REQUESTS).map(|number| body(model, number)).collect();
        let mut known = Vec::new();
        for answer in futures_util::future::join_all(bodies.iter().map(|body| one(client, body))).await {
            known.push(answer.expect("nothing is broken yet"));
        }
        let requests: Arc<Vec<(Value, String)>> = Arc::new(bodies.into_iter().zip(known).collect());
        let (stop, finished) = (CancellationToken::new(), Arc::<AtomicU64>::default());
        let mut tasks = JoinSet::new();
        for stream in 0..STREAMS {
            let (client, requests) = (client.clone(), requests.clone());
            let (stop, finished) = (stop.clone(), finished.clone());
            tasks.spawn(async move {
                let mut failures = Vec::new();
                let mut next = stream;
                while !stop.is_cancelled() {
                    let (body, expected) = &requests[next % requests.len()];
                    next += 1;
                    match one(&client, body).await {
                        Ok(text) if text == *expected => {}
                        Ok(text) => failures.push(format!("other text: {text} instead of {expected}")),
                        Err(problem) => failures.push(problem),
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                }
                failures
            });
        }
        Self { stop, finished, tasks }
    }

    /// Waits until `count` more streams have come to their end.
    pub async fn streams(&self, count: u64) {
        let wanted = self.finished.load(Ordering::Relaxed) + count;
        wait_until("streams go on", async || self.finished.load(Ordering::Relaxed) >= wanted).await;
    }

    /// Lets the streams in flight end and returns how many there were in all.
    ///
    /// # Panics
    /// When one has failed or said something else.
    pub async fn finish(mut self) -> u64 {
        self.stop.cancel();
        let mut failures = Vec::new();
        while let Some(found) = self.tasks.join_next().await {
            failures.extend(found.expect("a stream does not panic"));
        }
        let finished = self.finished.load(Ordering::Relaxed);
        assert!(failures.is_empty(), "{} of {finished} streams failed: {failures:#?}", failures.len());
        finished
    }
}

fn body(model: &str, number: usize) -> Value {
    json!({"model": model, "prompt": format!("{number}{}", " under load".repeat(20)), "max_tokens": TOKENS,
        "ignore_eos": true, "seed": number, "temperature": 1.0, "stream": true})
}

/// The whole text of a stream, or what was wrong with it.
async fn one(client: &Client, body: &Value) -> Result<String, String> {
    let (status, _, mut events) =
        client.stream("/v1/completions", body).await.map_err(|error| format!("no answer: {error}"))?;
    if status != 200 {
        let said = events.next().await;
        return Err(format!("status {status}: {said:?}"));
    }
    let (mut text, mut reason) = (String::new(), None);
    while let Some(event) = events.next().await {
        if event.get("error").is_some() || event.get("broken").is_some() {
            return Err(format!("after {} bytes: {event}", text.len()));
        }
        text.push_str(chunk_text(&event));
        reason = event["choices"][0]["finish_reason"].as_str().map(str::to_owned).or(reason);
    }
    match reason.as_deref() {
        Some("length") => Ok(text),
        other => Err(format!("ended with {other:?} after {} bytes", text.len())),
    }
}
