//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}` with the matching status.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use crate::domain::params::Invalid;

/// When a client may come back if nobody knows better.
const COME_BACK: Duration = Duration::from_secs(1);

/// An error for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// For a person.
    pub message: String,
    /// The parameter it concerns.
    pub param: Option<String>,
    /// For a program.
    pub code: Option<String>,
    /// When to come back; on 429 and 503.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// An error without parameter.
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: Some(code.to_owned()), retry_after: None }
    }

    /// OpenAI's class of it.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// Whole seconds after which to come back, up: a client that comes too early is refused again.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|delay| delay.as_millis().div_ceil(1000).max(1) as u64)
    }

    /// The body.
    pub fn json(&self) -> serde_json::Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> Self {
        let named = !invalid.param.is_empty();
        Self {
            status: StatusCode::BAD_REQUEST,
            message: if named { invalid.to_string() } else { invalid.message },
            param: named.then_some(invalid.param),
            code: Some("invalid_request".to_owned()),
            retry_after: None,
        }
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        let status = status_of(&fault);
        let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let model = (fault.reason == Reason::ModelNotFound).then(|| "model".to_owned());
        Self {
            status,
            param: fault.violations.first().map(|(field, _)| field.clone()).or(model),
            code: Some(fault.reason.as_str().to_ascii_lowercase()),
            retry_after: busy.then(|| fault.retry_after.unwrap_or(COME_BACK)),
            message: fault.message,
        }
    }
}

fn status_of(fault: &Fault) -> StatusCode {
    match fault.reason {
        Reason::InvalidArgument
        | Reason::ContextLengthExceeded
        | Reason::KvExhausted
        | Reason::QueryOfDeath
        | Reason::Unsupported => StatusCode::BAD_REQUEST,
        Reason::ModelNotFound => StatusCode::NOT_FOUND,
        Reason::AllWorkersBusy | Reason::WorkerBusy | Reason::Overloaded | Reason::PrefillBackpressure => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Reason::NoWorkers
        | Reason::Draining
        | Reason::WorkerLost
        | Reason::PrefillLost
        | Reason::TransferFailed
        | Reason::InstanceFenced => StatusCode::SERVICE_UNAVAILABLE,
        Reason::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Reason::Unauthenticated => StatusCode::BAD_GATEWAY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.json())).into_response();
        if let Some(seconds) = self.retry_after_seconds() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
