//! Turns a panic of a handler, or of the stream it answers with, into INTERNAL for that call only.

use std::any::Any;
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

/// Catches panics, logs each once and counts it.
#[derive(Clone, Debug)]
pub struct PanicLayer {
    panics: Counter,
}

impl PanicLayer {
    /// Counts in `panics`.
    pub fn new(panics: Counter) -> Self {
        Self { panics }
    }

    fn status(&self, method: &str, panic: &(dyn Any + Send)) -> Status {
        self.panics.inc();
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!(method, panic = text.unwrap_or("not text"), "a handler panicked");
        // The text stays in the log: it may hold a piece of the request.
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
        let method = request.uri().path().to_owned();
        let layer = self.layer.clone();
        // What a panic may leave half-done belongs to the one call that ends with it.
        let answer = catch_unwind(AssertUnwindSafe(|| self.inner.call(request)));
        Box::pin(async move {
            let answer = match answer {
                Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            match answer {
                Ok(answer) => answer.map(|answer| {
                    answer.map(|body| Body::new(PanicsCaughtBody { body: Some(body), method, layer }))
                }),
                Err(panic) => Ok(layer.status(&method, &*panic).into_http()),
            }
        })
    }
}

struct PanicsCaughtBody {
    body: Option<Body>,
    method: String,
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
            Err(panic) => {
                self.body = None;
                let status = self.layer.status(&self.method, &*panic);
                Poll::Ready(Some(super::last_frame(&status)))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), hyper::body::Body::size_hint)
    }
}
