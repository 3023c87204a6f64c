//! `WorkerService`: each call in a file of its own.

use std::pin::Pin;
use std::sync::Arc;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::worker::v1 as wire;
use armature_svc_kit::call::Call;
use futures_util::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::{convert, generate, kv_feed, prefill, state_feed};
use crate::worker::Served;

/// The gRPC face of a worker.
#[derive(Debug, Clone)]
pub struct WorkerGrpc {
    worker: Arc<Served>,
}

impl WorkerGrpc {
    /// Serves `worker`.
    pub fn new(worker: Arc<Served>) -> Self {
        Self { worker }
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The call that a request belongs to.
fn call_of<T>(request: &Request<T>) -> Call {
    request.extensions().get::<Call>().cloned().unwrap_or_default()
}

#[tonic::async_trait]
impl wire::worker_service_server::WorkerService for WorkerGrpc {
    type GenerateStream = Answers<wire::GenerateResponse>;
    type PrefillStream = Answers<wire::PrefillResponse>;
    type WatchStateStream = Answers<wire::WatchStateResponse>;
    type WatchKvStream = Answers<wire::WatchKvResponse>;

    async fn generate(
        &self,
        request: Request<wire::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let call = call_of(&request);
        let answers = generate::start(&self.worker, request.into_inner(), call)?;
        Ok(Response::new(Box::pin(answers)))
    }

    async fn end_choices(
        &self,
        request: Request<wire::EndChoicesRequest>,
    ) -> Result<Response<wire::EndChoicesResponse>, Status> {
        let (reservation, choices) = convert::ended_choices(request.get_ref())?;
        self.worker.backend.cancel_choices(reservation, choices);
        Ok(Response::new(wire::EndChoicesResponse {}))
    }

    async fn prefill(
        &self,
        request: Request<Streaming<wire::PrefillRequest>>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        let Some(own) = &self.worker.own else {
            let text = "this worker's engine hands no KV over: it is not a prefill worker";
            return Err(Fault::new(Reason::KvIncompatible, text).into());
        };
        let answers = prefill::start(own, request.into_inner()).await?;
        Ok(Response::new(Box::pin(answers)))
    }

    async fn watch_state(
        &self,
        request: Request<wire::WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        let answers = state_feed::start(&self.worker, &request.into_inner())?;
        Ok(Response::new(Box::pin(answers)))
    }

    async fn watch_kv(
        &self,
        request: Request<wire::WatchKvRequest>,
    ) -> Result<Response<Self::WatchKvStream>, Status> {
        let answers = kv_feed::start(&self.worker, &request.into_inner())?;
        Ok(Response::new(Box::pin(answers)))
    }
}
