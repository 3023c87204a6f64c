//! Ends a call when its deadline (`grpc-timeout`) passes: the handler is dropped, which cancels
//! what it waits for, and the caller gets DEADLINE_EXCEEDED, in the middle of a stream too.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use armature_contracts::error::{Fault, Reason};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::{Answer, Inner};
use crate::call::Call;

/// Honours the deadline of the request's [`Call`].
#[derive(Clone, Debug)]
pub struct DeadlineLayer {
    exceeded: Counter,
}

impl DeadlineLayer {
    /// Counts calls that were cut off in `exceeded`.
    pub fn new(exceeded: Counter) -> Self {
        Self { exceeded }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineHonoured<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineHonoured { inner, exceeded: self.exceeded.clone() }
    }
}

/// See [`DeadlineLayer`].
#[derive(Clone, Debug)]
pub struct DeadlineHonoured<S> {
    inner: S,
    exceeded: Counter,
}

pub(crate) fn exceeded() -> Status {
    Fault::new(Reason::DeadlineExceeded, "the deadline of the call has passed").into()
}

impl<S: Inner> Service<http::Request<Body>> for DeadlineHonoured<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let deadline = request.extensions().get::<Call>().and_then(|call| call.deadline);
        let answer = self.inner.call(request);
        let Some(deadline) = deadline else { return Box::pin(answer) };
        let counter = self.exceeded.clone();
        Box::pin(async move {
            match timeout_at(deadline, answer).await {
                Ok(answer) => Ok(answer?.map(|body| until(deadline, body, Some(counter)))),
                Err(_) => {
                    counter.inc();
                    Ok(exceeded().into_http())
                }
            }
        })
    }
}

/// `body`, cut off with DEADLINE_EXCEEDED at `deadline`.
pub(crate) fn until(deadline: Instant, body: Body, counter: Option<Counter>) -> Body {
    Body::new(Limited { body: Some(body), timer: Box::pin(sleep_until(deadline)), counter })
}

struct Limited {
    body: Option<Body>,
    timer: Pin<Box<Sleep>>,
    counter: Option<Counter>,
}

impl hyper::body::Body for Limited {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // The timer first: a stream that always has something ready ends in time, too.
        if self.body.is_none() || self.timer.as_mut().poll(cx).is_pending() {
            return self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx));
        }
        self.body = None;
        if let Some(counter) = &self.counter {
            counter.inc();
        }
        Poll::Ready(Some(super::last_frame(&exceeded())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), hyper::body::Body::size_hint)
    }
}
