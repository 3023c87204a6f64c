//! Refuses calls beyond a limit at once, so that an overloaded server says so instead of queueing.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::{Answer, Inner, is_health};

/// When a refused caller may try again: calls are short or streams, so there is no better guess.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Admits a fixed number of calls at a time; a streamed answer counts until it ends. Others get
/// RESOURCE_EXHAUSTED. Health checks are not counted.
#[derive(Clone, Debug)]
pub struct ShedLayer {
    slots: Arc<Semaphore>,
    limit: usize,
    in_flight: Gauge,
    shed: Counter,
}

impl ShedLayer {
    /// Admits `limit` calls; shows them in `in_flight` and refusals in `shed`.
    pub fn new(limit: usize, in_flight: Gauge, shed: Counter) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self { slots: Arc::new(Semaphore::new(limit)), limit, in_flight, shed }
    }

    fn admit(&self) -> Result<Slot, Status> {
        match self.slots.clone().try_acquire_owned() {
            Ok(permit) => {
                self.in_flight.inc();
                Ok(Slot { _permit: permit, in_flight: self.in_flight.clone() })
            }
            Err(_) => {
                self.shed.inc();
                let limit = self.limit;
                let told = format!("this server has its limit of {limit} calls in flight");
                Err(Fault::new(Reason::Overloaded, told).retry_after(RETRY_AFTER).into())
            }
        }
    }
}

#[derive(Debug)]
struct Slot {
    _permit: OwnedSemaphorePermit,
    in_flight: Gauge,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}

impl<S> Layer<S> for ShedLayer {
    type Service = Shedding<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Shedding { inner, layer: self.clone() }
    }
}

/// See [`ShedLayer`].
#[derive(Clone, Debug)]
pub struct Shedding<S> {
    inner: S,
    layer: ShedLayer,
}

impl<S: Inner> Service<http::Request<Body>> for Shedding<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        if is_health(request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        match self.layer.admit() {
            Ok(slot) => {
                let answer = self.inner.call(request);
                Box::pin(
                    async move { Ok(answer.await?.map(|body| Body::new(Admitted { body, _slot: slot }))) },
                )
            }
            Err(status) => Box::pin(ready(Ok(status.into_http()))),
        }
    }
}

struct Admitted {
    body: Body,
    _slot: Slot,
}

impl hyper::body::Body for Admitted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
