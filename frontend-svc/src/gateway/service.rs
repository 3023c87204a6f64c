//! ExternalProcessor over gRPC: a stream per HTTP request of Envoy's.

use std::collections::VecDeque;
use std::sync::Arc;

use armature_svc_kit::call::{Call, RequestId};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::exchange::{Asked, Endpoint, Exchange, Step};
use super::picked::Destination;
use super::wire::external_processor_server::ExternalProcessor;
use super::wire::{ProcessingRequest, ProcessingResponse};
use crate::domain::member::Members;
use crate::domain::prompt::Ask;
use crate::http::body::read_by;
use crate::http::chat::ChatRequest;
use crate::http::completions::CompletionRequest;
use crate::http::error::ApiError;
use crate::session::pick::Picked;
use crate::session::pipeline::Pipeline;

/// The Endpoint Picker.
#[derive(Clone)]
pub struct EndpointPicker {
    /// Where requests are prepared and routed.
    pub pipeline: Arc<Pipeline>,
    /// Workers, with the addresses of engines behind them.
    pub members: watch::Receiver<Arc<Members>>,
    /// HTTP address of a frontend, for engines that speak gRPC.
    pub frontend: Arc<str>,
    /// Longest body of a request, bytes.
    pub max_body: usize,
}

#[tonic::async_trait]
impl ExternalProcessor for EndpointPicker {
    type ProcessStream = BoxStream<'static, Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let exchange = Exchange::new(self.max_body, &self.frontend);
        let talk = Talk {
            picker: self.clone(),
            messages: request.into_inner(),
            exchange,
            answers: VecDeque::new(),
            picked: None,
        };
        let answers = stream::unfold(talk, |mut talk| async move {
            let answer = talk.next().await?;
            Some((answer, talk))
        });
        Ok(Response::new(answers.boxed()))
    }
}

/// One stream. Dropping it, at whatever point, gives back what was reserved.
struct Talk {
    picker: EndpointPicker,
    messages: Streaming<ProcessingRequest>,
    exchange: Exchange,
    answers: VecDeque<ProcessingResponse>,
    picked: Option<Picked>,
}

impl Talk {
    async fn next(&mut self) -> Option<Result<ProcessingResponse, Status>> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Some(Ok(answer));
            }
            if self.exchange.ended() {
                return None;
            }
            let message = match self.messages.message().await {
                Ok(message) => message?,
                Err(status) => return Some(Err(status)),
            };
            match self.exchange.take(message) {
                Step::Answers(answers) => self.answers.extend(answers),
                Step::Decide(asked) => {
                    let decision = self.decide(*asked).await;
                    self.answers.extend(self.exchange.decided(decision.as_ref().map_err(Clone::clone)));
                }
            }
            // Once the response begins, the frontend has a reservation of its own, or the engine's load shows the request.
            let done = self.exchange.ended() || self.exchange.answered();
            self.picked = self.picked.take().filter(|_| !done);
        }
    }

    async fn decide(&mut self, asked: Asked) -> Result<Destination, ApiError> {
        let mut call = Call::from_headers(&asked.headers, Instant::now());
        call.request_id.get_or_insert_with(|| RequestId::from_random(self.picker.pipeline.draw()));
        let caller = self.picker.pipeline.caller(call.clone(), &asked.headers)?;
        let ask = parse(asked.endpoint, asked.body).await?;
        let pick = Box::pin(self.picker.pipeline.pick(ask, caller));
        let picked = call.scope(pick).await?;
        let to = self.destination(&picked);
        self.picked = Some(picked);
        Ok(to)
    }

    fn destination(&self, picked: &Picked) -> Destination {
        let decision = picked.decision();
        let engine =
            self.picker.members.borrow().get(&decision.decode.worker.instance).and_then(|it| it.http.clone());
        match engine {
            Some(engine) => Destination::engine(&engine, decision),
            None => Destination::pinned(&self.picker.frontend, decision),
        }
    }
}

/// What is asked. Of several prompts in one request the first decides where they all go.
async fn parse(endpoint: Endpoint, body: Bytes) -> Result<Ask, ApiError> {
    Ok(match endpoint {
        Endpoint::Chat => read_by(ChatRequest::parse, body).await?.ask,
        Endpoint::Completions => {
            let first = read_by(CompletionRequest::parse, body).await?.asks.into_iter().next();
            first.ok_or_else(|| {
                ApiError::new(http::StatusCode::BAD_REQUEST, "invalid_request", "there is no prompt")
            })?
        }
    })
}
