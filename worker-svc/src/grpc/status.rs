//! The only place where errors of the core become errors of the wire.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};

use crate::domain::request::{Failure, Refusal};

/// A full worker is worth another try after about the time a step takes.
const BUSY_RETRY: Duration = Duration::from_millis(200);

/// An engine that restarts takes at least about as long.
const AWAY_RETRY: Duration = Duration::from_secs(1);

/// A request that was not taken.
pub(super) fn refusal(refusal: &Refusal) -> Fault {
    let text = refusal.to_string();
    match refusal {
        Refusal::QueueFull { .. } => Fault::new(Reason::WorkerBusy, text).retry_after(BUSY_RETRY),
        Refusal::Draining => draining(),
        Refusal::PrefillBackpressure { .. } => {
            Fault::new(Reason::PrefillBackpressure, text).retry_after(BUSY_RETRY)
        }
        Refusal::EngineAway => Fault::new(Reason::EngineFailed, text).retry_after(AWAY_RETRY),
        Refusal::Unsupported(unsupported) => {
            let mut fault = Fault::new(Reason::Unsupported, text);
            fault.violations.push((unsupported.parameter.to_owned(), unsupported.why.to_owned()));
            fault
        }
        Refusal::Fenced => Fault::new(Reason::InstanceFenced, text),
        Refusal::Duplicate => Fault::new(Reason::DuplicateAttempt, text),
        Refusal::ContextExceeded { .. } => Fault::new(Reason::ContextLengthExceeded, text),
        Refusal::TooManyChoices { .. } => Fault::invalid("n", text),
        Refusal::Invalid(_) => Fault::new(Reason::InvalidArgument, text),
    }
}

/// A request that failed after it was taken.
pub(super) fn failure(failure: &Failure, work_done: bool) -> Fault {
    let reason = match failure {
        Failure::Engine(_) => Reason::EngineFailed,
        Failure::PrefillLost(_) => Reason::PrefillLost,
    };
    Fault::new(reason, failure.to_string()).work_done(work_done)
}

/// New work comes too late.
pub(super) fn draining() -> Fault {
    Fault::new(Reason::Draining, "worker is draining: route the request to another one")
}
