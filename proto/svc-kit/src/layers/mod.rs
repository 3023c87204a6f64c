//! The server's middleware, one file per effect, outermost first: [`context`] reads the call,
//! [`panics`] turns a panic into INTERNAL, [`token`] checks the service token, [`shed`] refuses
//! beyond the limit of calls in flight, [`deadline`] ends a call in time.
//!
//! All of them speak `http::Request<tonic::body::Body>` and never fail: a refusal is a gRPC status.

pub mod context;
pub mod deadline;
pub mod panics;
pub mod shed;
pub mod token;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use tonic::body::Body;
use tower::Service;

/// The answer of a layer, on its way.
pub type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// What a layer wraps: any cloneable gRPC service.
pub trait Inner:
    Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<S> Inner for S where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static
{
}

/// True for the health service: probes have no token and must be answered by a full server.
fn is_health(path: &str) -> bool {
    path.starts_with("/grpc.health.v1.Health/")
}

/// The trailers that end a streamed answer with `status`.
pub(crate) fn last_frame(status: &tonic::Status) -> Result<hyper::body::Frame<bytes::Bytes>, tonic::Status> {
    let mut trailers = http::HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(hyper::body::Frame::trailers(trailers))
}
