//! Turns a panic of a handler, or of the stream it answers with, into INTERNAL for that call only.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use armature_contracts::error::{Fault, Reason};
use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::body::{Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::{Answer, Inner};

/// Catches panics and counts them; [`crate::telemetry`] logs each where it happens.
#[derive(Clone, Debug)]
pub struct PanicLayer {
    panics: Counter,
}

impl PanicLayer {
    /// Counts in `panics`.
    pub fn new(panics: Counter) -> Self {
        Self { panics }
    }

    fn status(&self) -> Status {
        self.panics.inc();
        Fault::new(Reason::Internal, "the handler failed; the server's log has the details").into()
    }
}

impl<S> Layer<S> for PanicLayer {
    type Service = PanicsCaught<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PanicsCaught { inner, layer: self.clone() }
    }
}

/// See [`PanicLayer`].
#[derive(Clone, Debug)]
pub struct PanicsCaught<S> {
    inner: S,
    layer: PanicLayer,
}

impl<S: Inner> Service<http::Request<Body>> for PanicsCaught<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let layer = self.layer.clone();
        // What a panic may leave half-done belongs to the one call that ends with it.
        let answer = catch_unwind(AssertUnwindSafe(|| self.inner.call(request)));
        Box::pin(async move {
            let answer = match answer {
                Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            match answer {
                Ok(answer) => answer
                    .map(|answer| answer.map(|body| Body::new(PanicsCaughtBody { body: Some(body), layer }))),
                Err(_) => Ok(layer.status().into_http()),
            }
        })
    }
}

struct PanicsCaughtBody {
    body: Option<Body>,
    layer: PanicLayer,
}

impl hyper::body::Body for PanicsCaughtBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx))) {
            Ok(frame) => frame,
            Err(_) => {
                self.body = None;
                let status = self.layer.status();
                Poll::Ready(Some(super::last_frame(&status)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), hyper::body::Body::size_hint)
    }
}
