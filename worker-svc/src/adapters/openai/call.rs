//! What an engine's refusals and failures mean, in our errors.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use http::StatusCode;

use super::client::CallError;
use crate::domain::openai::chunk;

/// When a full engine is worth another try, where it does not say.
const BUSY_RETRY: Duration = Duration::from_millis(500);
/// Longest text of an engine's that is passed on, in characters.
const MAX_SAID: usize = 500;

/// A name for metrics, and the error.
pub(super) type Failed = (&'static str, Box<Fault>);

/// The engine did not take it.
pub(super) fn refused(status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Failed {
    let said = said(body);
    let engine =
        |what: &str| Fault::new(Reason::EngineFailed, format!("the engine {what} ({status}): {said}"));
    let busy = || {
        let fault = Fault::new(Reason::WorkerBusy, format!("the engine takes no more ({status}): {said}"));
        fault.retry_after(retry_after.unwrap_or(BUSY_RETRY))
    };
    let (name, fault) = match status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => (
            "invalid",
            Fault::new(Reason::InvalidArgument, format!("the engine refuses the request: {said}")),
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ("unauthorized", engine("wants a key that openai.api_key does not have"))
        }
        StatusCode::NOT_FOUND => (
            "not_found",
            Fault::new(Reason::ModelMismatch, format!("the engine serves this model no longer: {said}")),
        ),
        StatusCode::TOO_MANY_REQUESTS => ("busy", busy()),
        StatusCode::SERVICE_UNAVAILABLE => ("unavailable", busy()),
        _ => ("status", engine("failed")),
    };
    (name, Box::new(fault))
}

/// The call failed. `begun`: the engine had begun to answer, and takes what it has computed with it.
pub(super) fn broke(error: &CallError, begun: bool) -> Failed {
    let reason = if begun { Reason::WorkerLost } else { Reason::EngineFailed };
    let name = match error {
        CallError::Refused(_) => "connection_refused",
        CallError::Broken(_) => "connection_broken",
        CallError::Silent(_) => "silent",
        CallError::TooLarge(_) => "too_large",
    };
    (name, Box::new(Fault::new(reason, format!("the engine is lost: {error}"))))
}

/// It answers, but not as it must.
pub(super) fn misbehaved(name: &'static str, error: impl std::fmt::Display) -> Failed {
    let text = format!("the engine does not keep to its protocol: {error}");
    (name, Box::new(Fault::new(Reason::EngineFailed, text)))
}

/// The text of an error's body.
pub(super) fn said(body: &[u8]) -> String {
    let text = match serde_json::from_slice(body) {
        Ok(json) => chunk::message(&json),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let mut said: String = text.trim().chars().take(MAX_SAID).collect();
    if said.is_empty() {
        said = "it does not say why".to_owned();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::error::Scope;

    #[test]
    fn each_status_has_its_meaning() {
        let body = br#"{"error":{"message":"too long","type":"x"}}"#;
        let of = |code: u16, retry| {
            let status = StatusCode::from_u16(code).unwrap_or_default();
            let (_, fault) = refused(status, retry, body);
            assert!(fault.message.contains("too long"), "{}", fault.message);
            (fault.reason, fault.scope, fault.retry_after)
        };
        assert_eq!(of(400, None), (Reason::InvalidArgument, Scope::Request, None));
        assert_eq!(of(422, None), (Reason::InvalidArgument, Scope::Request, None));
        let in_7_s = Some(Duration::from_secs(7));
        assert_eq!(of(429, in_7_s), (Reason::WorkerBusy, Scope::ThisWorker, in_7_s));
        assert_eq!(of(503, None), (Reason::WorkerBusy, Scope::ThisWorker, Some(BUSY_RETRY)));
        assert_eq!(of(500, None), (Reason::EngineFailed, Scope::ThisWorker, None));
        assert_eq!(of(401, None), (Reason::EngineFailed, Scope::ThisWorker, None));
        assert_eq!(of(404, None), (Reason::ModelMismatch, Scope::ThisWorker, None));
        assert_eq!(of(302, None), (Reason::EngineFailed, Scope::ThisWorker, None));
    }

    #[test]
    fn a_broken_connection_is_a_lost_worker_once_it_has_begun() {
        let error = CallError::Broken("reset".into());
        assert_eq!(broke(&error, true).1.reason, Reason::WorkerLost);
        assert_eq!(broke(&error, false).1.reason, Reason::EngineFailed);
        assert_eq!(said(b""), "it does not say why");
        assert_eq!(said(&[b'x'; 9000]).len(), MAX_SAID);
    }
}
