//! Checks the service token, where one is configured.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use armature_contracts::error::{Fault, Reason};
use http::header::AUTHORIZATION;
use prometheus_client::metrics::counter::Counter;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::{Answer, Inner, is_health};
use crate::secret::Secret;

/// Refuses calls without `authorization: Bearer <token>` as UNAUTHENTICATED. Without a token it
/// lets everything through; health checks always pass.
#[derive(Clone, Debug)]
pub struct TokenLayer {
    token: Option<Arc<Secret>>,
    refused: Counter,
}

impl TokenLayer {
    /// Asks for `token` and counts refusals in `refused`.
    pub fn new(token: Option<Secret>, refused: Counter) -> Self {
        Self { token: token.map(Arc::new), refused }
    }

    fn admits(&self, request: &http::Request<Body>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = request.headers().get(AUTHORIZATION).map(http::HeaderValue::as_bytes);
        is_health(request.uri().path())
            || given
                .and_then(|given| given.strip_prefix(b"Bearer "))
                .is_some_and(|given| token.matches(given))
    }
}

impl<S> Layer<S> for TokenLayer {
    type Service = TokenChecked<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TokenChecked { inner, layer: self.clone() }
    }
}

/// See [`TokenLayer`].
#[derive(Clone, Debug)]
pub struct TokenChecked<S> {
    inner: S,
    layer: TokenLayer,
}

impl<S: Inner> Service<http::Request<Body>> for TokenChecked<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        if self.layer.admits(&request) {
            return Box::pin(self.inner.call(request));
        }
        self.layer.refused.inc();
        let needed = "a valid service token is required (metadata `authorization: Bearer ...`)";
        let status = Status::from(Fault::new(Reason::Unauthenticated, needed));
        Box::pin(ready(Ok(status.into_http())))
    }
}
