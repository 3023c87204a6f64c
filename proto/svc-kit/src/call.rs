//! What one call carries from service to service: its deadline, its request id, its trace.
//!
//! The server puts a [`Call`] into the request's extensions and around the handler's task (and
//! around each poll of a streamed answer); a [`crate::channel::Channel`] used there passes it on.
//! Work that a handler spawns takes `Call::current()` along with [`Call::scope`].

use std::future::Future;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::grpc_timeout;
use crate::trace::TraceContext;

/// Metadata key of the request id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer request id from outside is not taken over: it is copied into every log line.
pub const MAX_REQUEST_ID_BYTES: usize = 128;

tokio::task_local! {
    static CURRENT: Call;
}

/// Names a request in the logs and traces of every service it passes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// Takes an id given from outside, if it is printable ASCII of a sensible length.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= MAX_REQUEST_ID_BYTES;
        (fits && text.bytes().all(|byte| byte.is_ascii_graphic())).then(|| Self(text.to_owned()))
    }

    /// The id made of 128 random bits.
    pub fn from_random(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The travelling part of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// When the caller gives up; `None` without a limit.
    pub deadline: Option<Instant>,
    /// The request this call belongs to.
    pub request_id: Option<RequestId>,
    /// The caller's trace, if it is traced.
    pub trace: Option<TraceContext>,
}

impl Call {
    /// Reads a call from the headers of a gRPC or HTTP request that arrived at `now`.
    pub fn from_headers(headers: &HeaderMap, now: Instant) -> Self {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let limit = text(grpc_timeout::GRPC_TIMEOUT).and_then(grpc_timeout::decode);
        Self {
            deadline: limit.and_then(|limit| now.checked_add(limit)),
            request_id: text(X_REQUEST_ID).and_then(RequestId::parse),
            trace: TraceContext::from_headers(headers),
        }
    }

    /// Writes this call into the headers of a request sent at `now`. A shorter `grpc-timeout` or a
    /// request id that is already there stays.
    pub fn write_headers(&self, headers: &mut HeaderMap, now: Instant) {
        if let Some(remaining) = self.remaining(now) {
            let own = headers
                .get(grpc_timeout::GRPC_TIMEOUT)
                .and_then(|value| value.to_str().ok())
                .and_then(grpc_timeout::decode);
            let limit = own.map_or(remaining, |own| own.min(remaining));
            headers.insert(grpc_timeout::GRPC_TIMEOUT, grpc_timeout::encode(limit));
        }
        if let Some(id) = &self.request_id
            && !headers.contains_key(X_REQUEST_ID)
            && let Ok(value) = HeaderValue::from_str(id.as_str())
        {
            headers.insert(X_REQUEST_ID, value);
        }
        if let Some(trace) = TraceContext::of_current_span().as_ref().or(self.trace.as_ref()) {
            trace.write_headers(headers);
        }
    }

    /// Time left at `now`: zero when the deadline has passed, `None` without a deadline.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// The call this task works for.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Runs `future` as part of this call.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }

    /// Runs `step`, for instance one poll, as part of this call.
    pub fn sync_scope<R>(&self, step: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(self.clone(), step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_timeout_and_the_own_id_stay() {
        let now = Instant::now();
        let call = Call {
            deadline: Some(now + Duration::from_secs(5)),
            request_id: RequestId::parse("outer"),
            trace: None,
        };
        let mut headers = HeaderMap::new();
        headers.insert(grpc_timeout::GRPC_TIMEOUT, HeaderValue::from_static("2S"));
        headers.insert(X_REQUEST_ID, HeaderValue::from_static("inner"));
        call.write_headers(&mut headers, now);
        let read = Call::from_headers(&headers, now);
        assert_eq!(read.remaining(now), Some(Duration::from_secs(2)));
        assert_eq!(read.request_id, RequestId::parse("inner"));

        call.write_headers(&mut headers, now + Duration::from_secs(4));
        assert_eq!(Call::from_headers(&headers, now).remaining(now), Some(Duration::from_secs(1)));
    }

    #[test]
    fn odd_request_ids_are_not_taken_over() {
        assert_eq!(RequestId::parse(""), None);
        assert_eq!(RequestId::parse("a b"), None);
        assert_eq!(RequestId::parse(&"x".repeat(MAX_REQUEST_ID_BYTES + 1)), None);
        assert_eq!(RequestId::from_random(255).as_str(), "000000000000000000000000000000ff");
    }
}
