//! Typed errors between services: what `google.rpc` details say, in one struct.
//!
//! A [`Fault`] becomes a [`tonic::Status`] with `ErrorInfo` (domain "armature", the reason, and `scope`, `retryable`, `work_done` as
//! metadata), `RetryInfo` when a later try can succeed, `BadRequest` for parameters and `ResourceInfo` for what it concerns, so that any
//! gRPC client can read it. [`Fault::from_status`] is the inverse; a status without details gets the most cautious reading.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Domain of every `ErrorInfo` that Armature makes.
pub const DOMAIN: &str = "armature";

/// Whom an error concerns: a frontend tries another worker only for [`Scope::ThisWorker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Another worker may do better.
    ThisWorker,
    /// No worker would do better now.
    AllWorkers,
    /// The request itself is wrong, wherever it goes.
    Request,
}

impl Scope {
    fn as_str(self) -> &'static str {
        match self {
            Self::ThisWorker => "THIS_WORKER",
            Self::AllWorkers => "ALL_WORKERS",
            Self::Request => "REQUEST",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $code:ident, $scope:ident;)*) => {
        /// Why something was refused or failed. docs/error-reasons.md lists them for users.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name),* }
        impl Reason {
            /// Every reason.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];
            /// Name on the wire.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text),* } }
            /// The gRPC code it is sent with.
            pub fn code(self) -> Code { match self { $(Self::$name => Code::$code),* } }
            /// Whom it concerns unless the fault says otherwise.
            pub fn scope(self) -> Scope { match self { $(Self::$name => Scope::$scope),* } }
            /// Reads a name from the wire; an unknown one is [`Reason::Unspecified`].
            pub fn parse(text: &str) -> Self { match text { $($text => Self::$name,)* _ => Self::Unspecified } }
        }
    };
}

reasons! {
    /// Not one of ours, or from a newer version.
    Unspecified = "UNSPECIFIED", Unknown, ThisWorker;
    /// A parameter is malformed or out of range.
    InvalidArgument = "INVALID_ARGUMENT", InvalidArgument, Request;
    /// The model is not served.
    ModelNotFound = "MODEL_NOT_FOUND", NotFound, Request;
    /// Prompt and output do not fit the context.
    ContextLengthExceeded = "CONTEXT_LENGTH_EXCEEDED", InvalidArgument, Request;
    /// Known model, but no eligible worker.
    NoWorkers = "NO_WORKERS", Unavailable, AllWorkers;
    /// Every worker refused or would.
    AllWorkersBusy = "ALL_WORKERS_BUSY", ResourceExhausted, AllWorkers;
    /// This worker's queue is full.
    WorkerBusy = "WORKER_BUSY", ResourceExhausted, ThisWorker;
    /// The request can never fit this worker's KV pool.
    KvExhausted = "KV_EXHAUSTED", ResourceExhausted, ThisWorker;
    /// The instance is shutting down and takes no new work.
    Draining = "DRAINING", Unavailable, ThisWorker;
    /// The instance id is another incarnation's, or was announced gone.
    InstanceFenced = "INSTANCE_FENCED", FailedPrecondition, ThisWorker;
    /// The pinned instance is unknown, not READY or excluded.
    InstanceNotEligible = "INSTANCE_NOT_ELIGIBLE", FailedPrecondition, Request;
    /// This (reservation, attempt) has been used.
    DuplicateAttempt = "DUPLICATE_ATTEMPT", AlreadyExists, Request;
    /// The reservation was released before.
    Released = "RELEASED", Cancelled, Request;
    /// Hash schemes differ.
    HashSchemeMismatch = "HASH_SCHEME_MISMATCH", FailedPrecondition, AllWorkers;
    /// Block sizes differ.
    BlockSizeMismatch = "BLOCK_SIZE_MISMATCH", FailedPrecondition, AllWorkers;
    /// The worker computes other hashes for this prompt.
    HashMismatch = "HASH_MISMATCH", FailedPrecondition, AllWorkers;
    /// The worker serves another model.
    ModelMismatch = "MODEL_MISMATCH", FailedPrecondition, ThisWorker;
    /// Compatibility keys differ.
    KvIncompatible = "KV_INCOMPATIBLE", FailedPrecondition, ThisWorker;
    /// Shards differ.
    KvShardMismatch = "KV_SHARD_MISMATCH", FailedPrecondition, ThisWorker;
    /// The prefill worker holds as much ungranted KV as it may.
    PrefillBackpressure = "PREFILL_BACKPRESSURE", ResourceExhausted, ThisWorker;
    /// Every named prefill worker failed and local prefill is forbidden.
    PrefillLost = "PREFILL_LOST", Unavailable, ThisWorker;
    /// A KV transfer broke.
    TransferFailed = "TRANSFER_FAILED", Unavailable, ThisWorker;
    /// The engine failed.
    EngineFailed = "ENGINE_FAILED", Internal, ThisWorker;
    /// A request that killed three workers, or one equal to it.
    QueryOfDeath = "QUERY_OF_DEATH", FailedPrecondition, Request;
    /// The connection or the process behind it is gone.
    WorkerLost = "WORKER_LOST", Unavailable, ThisWorker;
    /// The deadline passed.
    DeadlineExceeded = "DEADLINE_EXCEEDED", DeadlineExceeded, Request;
    /// The caller went away or cancelled.
    Cancelled = "CANCELLED", Cancelled, Request;
    /// The service refuses work beyond its limit.
    Overloaded = "OVERLOADED", ResourceExhausted, ThisWorker;
    /// The service token is missing or wrong.
    Unauthenticated = "UNAUTHENTICATED", Unauthenticated, Request;
    /// The card is not stored: PutCard first.
    CardUnknown = "CARD_UNKNOWN", FailedPrecondition, Request;
    /// No such artifact.
    ArtifactUnknown = "ARTIFACT_UNKNOWN", NotFound, Request;
    /// A card or artifact is malformed, too large or not what its digest says.
    ArtifactInvalid = "ARTIFACT_INVALID", InvalidArgument, Request;
    /// The decision is not or no longer kept.
    DecisionUnknown = "DECISION_UNKNOWN", NotFound, Request;
    /// The server does not have this lease.
    LeaseUnknown = "LEASE_UNKNOWN", NotFound, Request;
    /// The registry's backend does not answer.
    BackendUnreachable = "BACKEND_UNREACHABLE", Unavailable, AllWorkers;
    /// A parameter that this engine does not have.
    Unsupported = "UNSUPPORTED", Unimplemented, Request;
    /// A bug of ours.
    Internal = "INTERNAL", Internal, ThisWorker;
}

/// An error as services exchange it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Why.
    pub reason: Reason,
    /// For a person: names the limit or what to do.
    pub message: String,
    /// Whom it concerns.
    pub scope: Scope,
    /// Whether the same request can succeed later.
    pub retryable: bool,
    /// When to try again, if that is known.
    pub retry_after: Option<Duration>,
    /// Whether tokens were produced before it.
    pub work_done: bool,
    /// (type, name) of what it concerns.
    pub resource: Option<(String, String)>,
    /// (field, description) of wrong parameters.
    pub violations: Vec<(String, String)>,
    /// Overrides the reason's code (a status of foreign origin).
    code: Code,
}

impl Fault {
    /// A fault with the reason's own code and scope; retryable unless it concerns the request.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            scope: reason.scope(),
            retryable: reason.scope() != Scope::Request,
            retry_after: None,
            work_done: false,
            resource: None,
            violations: Vec::new(),
            code: reason.code(),
        }
    }

    /// A wrong parameter: `field` by its name in the caller's request.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        let (field, description) = (field.into(), description.into());
        let mut fault = Self::new(Reason::InvalidArgument, format!("{field}: {description}"));
        fault.violations.push((field, description));
        fault
    }

    /// Adds when to try again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retryable = true;
        self.retry_after = Some(delay);
        self
    }

    /// Adds what it concerns.
    #[must_use]
    pub fn resource(mut self, kind: impl Into<String>, name: impl Into<String>) -> Self {
        self.resource = Some((kind.into(), name.into()));
        self
    }

    /// Says whether tokens were produced before it.
    #[must_use]
    pub fn work_done(mut self, work_done: bool) -> Self {
        self.work_done = work_done;
        self
    }

    /// The gRPC code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Reads a status. Without our details: UNAVAILABLE and what a transport error looks like are [`Reason::WorkerLost`], other codes keep
    /// their nearest reason.
    pub fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == DOMAIN);
        let reason = match info {
            Some(info) => Reason::parse(&info.reason),
            None => match status.code() {
                Code::InvalidArgument | Code::OutOfRange => Reason::InvalidArgument,
                Code::DeadlineExceeded => Reason::DeadlineExceeded,
                Code::Cancelled => Reason::Cancelled,
                Code::Unauthenticated | Code::PermissionDenied => Reason::Unauthenticated,
                Code::Unimplemented => Reason::Unsupported,
                Code::ResourceExhausted => Reason::Overloaded,
                Code::Internal => Reason::Internal,
                Code::Unavailable | Code::Unknown => Reason::WorkerLost,
                _ => Reason::Unspecified,
            },
        };
        let mut fault = Self::new(reason, status.message());
        fault.code = status.code();
        if let Some(info) = info {
            let flag = |name: &str| info.metadata.get(name).is_some_and(|value| value == "true");
            fault.retryable = flag("retryable");
            fault.work_done = flag("work_done");
            fault.scope = match info.metadata.get("scope").map(String::as_str) {
                Some("THIS_WORKER") => Scope::ThisWorker,
                Some("ALL_WORKERS") => Scope::AllWorkers,
                _ => Scope::Request,
            };
        }
        fault.retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
        fault.resource = details
            .resource_info()
            .map(|resource| (resource.resource_type.clone(), resource.resource_name.clone()));
        if let Some(bad) = details.bad_request() {
            fault.violations =
                bad.field_violations.iter().map(|v| (v.field.clone(), v.description.clone())).collect();
        }
        fault
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let mut details = ErrorDetails::new();
        let metadata = HashMap::from([
            ("scope".to_owned(), fault.scope.as_str().to_owned()),
            ("retryable".to_owned(), fault.retryable.to_string()),
            ("work_done".to_owned(), fault.work_done.to_string()),
        ]);
        details.set_error_info(fault.reason.as_str(), DOMAIN, metadata);
        if let Some(delay) = fault.retry_after {
            details.set_retry_info(Some(delay));
        }
        if let Some((kind, name)) = &fault.resource {
            details.set_resource_info(kind, name, "", "");
        }
        for (field, description) in &fault.violations {
            details.add_bad_request_violation(field, description);
        }
        Status::with_error_details(fault.code, fault.message, details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_survives_the_wire() {
        for reason in Reason::ALL {
            let mut fault = Fault::new(*reason, "why")
                .resource("worker", "00ab")
                .retry_after(Duration::from_millis(1500));
            fault.work_done = true;
            assert_eq!(Fault::from_status(&Status::from(fault.clone())), fault);
        }
        let fault = Fault::invalid("temperature", "3 is above the limit of 2");
        let read = Fault::from_status(&Status::from(fault.clone()));
        assert_eq!(read, fault);
        assert_eq!(read.violations, [("temperature".to_owned(), "3 is above the limit of 2".to_owned())]);
    }

    #[test]
    fn every_reason_is_listed_for_users() {
        let list = include_str!("../../docs/error-reasons.md");
        for reason in Reason::ALL {
            let mut code = String::new();
            for letter in format!("{:?}", reason.code()).chars() {
                if letter.is_uppercase() && !code.is_empty() {
                    code.push('_');
                }
                code.push(letter.to_ascii_uppercase());
            }
            let concerns = match reason.scope() {
                Scope::ThisWorker => "another worker may do better",
                Scope::AllWorkers => "no worker would do better now",
                Scope::Request => "the request, wherever it goes",
            };
            let begin = format!("| `{}` | {code} |", reason.as_str());
            let row = list.lines().find(|line| line.starts_with(&begin));
            assert!(
                row.is_some_and(|row| row.ends_with(&format!("| {concerns} |"))),
                "{begin} ... {concerns}: {row:?}"
            );
        }
        let rows = list.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, Reason::ALL.len(), "rows of reasons that do not exist");
    }

    #[test]
    fn a_bare_status_gets_the_cautious_reading() {
        assert_eq!(Fault::from_status(&Status::unavailable("gone")).scope, Scope::ThisWorker);
        assert_eq!(Fault::from_status(&Status::invalid_argument("no")).scope, Scope::Request);
        assert!(!Fault::from_status(&Status::invalid_argument("no")).retryable);
    }
}
