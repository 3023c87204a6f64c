//! Reads deadline, request id and trace of a call, and runs the handler inside them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::body::Body;
use tower::{Layer, Service};
use tracing::{Instrument as _, Span};

use super::{Answer, Inner};
use crate::call::{Call, RequestId};

/// Makes a [`Call`] of each request: in its extensions, around its handler and its answer's body.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContextLayer;

impl<S> Layer<S> for ContextLayer {
    type Service = InContext<S>;

    fn layer(&self, inner: S) -> Self::Service {
        InContext { inner }
    }
}

/// See [`ContextLayer`].
#[derive(Clone, Debug)]
pub struct InContext<S> {
    inner: S,
}

impl<S: Inner> Service<http::Request<Body>> for InContext<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Answer {
        let mut call = Call::from_headers(request.headers(), Instant::now());
        let request_id = call.request_id.get_or_insert_with(|| RequestId::from_random(rand::random()));
        let span = tracing::info_span!("grpc", method = request.uri().path(), %request_id);
        if let Some(trace) = &call.trace {
            trace.set_parent_of(&span);
        }
        request.extensions_mut().insert(call.clone());
        let answer = call.sync_scope(|| span.in_scope(|| self.inner.call(request)));
        let body = (call.clone(), span.clone());
        Box::pin(
            call.scope(async move {
                let answer = answer.await?;
                let (call, span) = body;
                Ok(answer.map(|body| Body::new(InContextBody { body, call, span })))
            })
            .instrument(span),
        )
    }
}

struct InContextBody {
    body: Body,
    call: Call,
    span: Span,
}

impl hyper::body::Body for InContextBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let Self { body, call, span } = self.get_mut();
        call.sync_scope(|| span.in_scope(|| Pin::new(body).poll_frame(cx)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
