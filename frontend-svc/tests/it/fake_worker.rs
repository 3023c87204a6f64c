//! A worker whose tokens are a pure function of choice and position, so that any worker continues where another stopped.

use std::sync::{Arc, Mutex};

use armature_contracts::error::Fault;
use armature_contracts::inference::v1 as inference;
use armature_contracts::worker::v1 as wire;
use armature_contracts::worker::v1::generate_response::Event;
use armature_contracts::worker::v1::worker_service_server::WorkerService;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// What becomes of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// The text that every choice has; choice i has it with its number in front when `numbered`.
    pub(crate) text: Vec<u8>,
    pub(crate) numbered: bool,
    /// The end: an end token, unless max_tokens comes first.
    pub(crate) end_token: Option<u32>,
    /// Tokens of one delta.
    pub(crate) burst: usize,
    /// Refuses, that many times.
    pub(crate) refusals: Vec<Fault>,
    /// After that many deltas of this worker the process dies.
    pub(crate) dies_after: Option<usize>,
    /// After that many deltas every choice is given up.
    pub(crate) gives_up_after: Option<usize>,
    /// After that many deltas nothing comes any more.
    pub(crate) stalls_after: Option<usize>,
    pub(crate) cached: u32,
}

#[derive(Clone)]
pub(crate) struct FakeWorker {
    pub(crate) script: Arc<Mutex<Script>>,
    pub(crate) asked: Arc<watch::Sender<Vec<wire::GenerateRequest>>>,
    /// Choices that it was told to end.
    pub(crate) ended: Arc<watch::Sender<Vec<wire::EndChoicesRequest>>>,
    /// Requests whose stream is alive.
    pub(crate) running: Arc<watch::Sender<usize>>,
    /// Ends the process: every connection breaks.
    pub(crate) dead: CancellationToken,
}

struct Running(Arc<watch::Sender<usize>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl FakeWorker {
    pub(crate) fn new(script: Script) -> Self {
        Self {
            script: Arc::new(Mutex::new(script)),
            asked: Arc::new(watch::channel(Vec::new()).0),
            ended: Arc::new(watch::channel(Vec::new()).0),
            running: Arc::new(watch::channel(0).0),
            dead: CancellationToken::new(),
        }
    }

    pub(crate) fn asked(&self) -> Vec<wire::GenerateRequest> {
        self.asked.borrow().clone()
    }

    /// Tokens of a choice, from the first.
    fn tokens(script: &Script, choice: u32, max: usize) -> (Vec<u32>, inference::FinishReason) {
        let number = script.numbered.then(|| u32::from(b'0') + choice);
        let text = script.text.iter().map(|byte| u32::from(*byte));
        let all: Vec<u32> = number.into_iter().chain(text).chain(script.end_token).collect();
        if max < all.len() || script.end_token.is_none() {
            (all.into_iter().cycle().take(max).collect(), inference::FinishReason::Length)
        } else {
            (all, inference::FinishReason::Stop)
        }
    }

    /// The deltas of a request, choices in turn.
    fn deltas(script: &Script, request: &wire::GenerateRequest) -> Vec<wire::TokenDelta> {
        let stop = request.stop.clone().unwrap_or_default();
        let logprobs = request.sampling.as_ref().and_then(|sampling| sampling.logprobs);
        let max = stop.max_tokens.unwrap_or(64) as usize;
        let burst = script.burst.max(1);
        let mut rounds: Vec<(usize, wire::TokenDelta)> = Vec::new();
        for start in &request.choices {
            let (tokens, finish) = Self::tokens(script, start.index, max);
            let done = start.generated_token_ids.len();
            let left = &tokens[done.min(tokens.len())..];
            for (i, part) in left.chunks(burst).enumerate() {
                let position = done + i * burst;
                let last = position + part.len() == tokens.len();
                let delta = wire::TokenDelta {
                    choice: start.index,
                    position: position as u32,
                    tokens: part.iter().map(|id| info(*id, logprobs)).collect(),
                    finish_reason: if last { finish } else { inference::FinishReason::Unspecified }.into(),
                };
                rounds.push((i, delta));
            }
        }
        rounds.sort_by_key(|(round, _)| *round);
        rounds.into_iter().map(|(_, delta)| delta).collect()
    }
}

fn info(id: u32, logprobs: Option<u32>) -> inference::TokenInfo {
    inference::TokenInfo {
        token_id: id,
        logprob: logprobs.map(|_| -0.5),
        top: (0..logprobs.unwrap_or(0))
            .map(|i| inference::TokenAlternative { token_id: u32::from(b'a') + i, logprob: -1.0 - i as f32 })
            .collect(),
    }
}

fn event(event: Event) -> Result<wire::GenerateResponse, Status> {
    Ok(wire::GenerateResponse { event: Some(event) })
}

type Stream<T> = BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl WorkerService for FakeWorker {
    type GenerateStream = Stream<wire::GenerateResponse>;
    type PrefillStream = Stream<wire::PrefillResponse>;
    type WatchStateStream = Stream<wire::WatchStateResponse>;
    type WatchKvStream = Stream<wire::WatchKvResponse>;

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let request = request.into_inner();
        self.asked.send_modify(|asked| asked.push(request.clone()));
        let script = {
            let mut script = self.script.lock().unwrap();
            if let Some(fault) = script.refusals.pop() {
                return Err(fault.into());
            }
            script.clone()
        };
        self.running.send_modify(|count| *count += 1);
        let guard = Running(self.running.clone());
        let deltas = Self::deltas(&script, &request);
        let limit =
            [script.dies_after, script.gives_up_after, script.stalls_after].into_iter().flatten().min();
        let shown = limit.unwrap_or(deltas.len()).min(deltas.len());
        let cut = shown < deltas.len() || limit == Some(deltas.len());
        let usage = inference::Usage {
            prompt_tokens: request.prompt_token_ids.len() as u32,
            cached_tokens: script.cached,
            computed_tokens: (request.prompt_token_ids.len() as u32).saturating_sub(script.cached),
            ..Default::default()
        };
        let started = event(Event::Started(wire::GenerateStarted { cached_tokens: script.cached }));
        let begun = deltas[..shown].iter().cloned().map(|delta| event(Event::Delta(delta)));
        let begun: Vec<_> = std::iter::once(started).chain(begun).collect();
        let dead = self.dead.clone();
        let positions = deltas[..shown].iter().fold(
            request.choices.iter().map(|it| (it.index, it.generated_token_ids.len())).collect::<Vec<_>>(),
            |mut at, delta| {
                at.iter_mut().filter(|it| it.0 == delta.choice).for_each(|it| it.1 += delta.tokens.len());
                at
            },
        );
        let end = stream::once(async move {
            let finished =
                event(Event::Finished(wire::GenerateFinished { usage: Some(usage), prefill_worker: None }));
            if !cut {
                return vec![finished];
            }
            if script.gives_up_after.is_some() {
                let give_up = |(choice, position): (u32, usize)| {
                    event(Event::Delta(wire::TokenDelta {
                        choice,
                        position: position as u32,
                        tokens: Vec::new(),
                        finish_reason: inference::FinishReason::Migrate.into(),
                    }))
                };
                return positions.into_iter().map(give_up).chain([finished]).collect();
            }
            if script.dies_after.is_some() {
                // The last message has to leave before the connection breaks.
                tokio::task::yield_now().await;
                dead.cancel();
            }
            std::future::pending().await
        });
        let events = stream::iter(begun).chain(end.flat_map(stream::iter)).map(move |event| {
            let _alive = &guard;
            event
        });
        Ok(Response::new(events.boxed()))
    }

    async fn end_choices(
        &self,
        request: Request<wire::EndChoicesRequest>,
    ) -> Result<Response<wire::EndChoicesResponse>, Status> {
        self.ended.send_modify(|ended| ended.push(request.into_inner()));
        Ok(Response::new(wire::EndChoicesResponse {}))
    }

    async fn prefill(
        &self,
        _: Request<Streaming<wire::PrefillRequest>>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn watch_state(
        &self,
        _: Request<wire::WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn watch_kv(
        &self,
        _: Request<wire::WatchKvRequest>,
    ) -> Result<Response<Self::WatchKvStream>, Status> {
        Err(Status::unimplemented("not needed here"))
    }
}
