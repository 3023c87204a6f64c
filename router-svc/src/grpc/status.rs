//! The only map from the router's errors to what travels.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_svc_kit::drain::Draining;

use crate::domain::dispatch::NotHeld;
use crate::domain::policy::Refusal;
use crate::domain::router::RouteError;

/// With nobody there now, one second is when a restarted or new worker may be in the view.
const MEMBERSHIP_CHANGES: Duration = Duration::from_secs(1);
/// With all reservations in use, some end with every report.
const RESERVATIONS_END: Duration = Duration::from_millis(100);

/// What a refused Route says.
pub fn route_fault(error: &RouteError) -> Fault {
    let text = error.to_string();
    match error {
        RouteError::Released => Fault::new(Reason::Released, text),
        RouteError::TooMany(_) => Fault::new(Reason::Overloaded, text).retry_after(RESERVATIONS_END),
        RouteError::NotHeld(NotHeld::Draining) => Fault::new(Reason::Draining, text),
        RouteError::NotHeld(refused) => {
            let mut fault = Fault::new(Reason::AllWorkersBusy, text);
            fault.retry_after = refused.retry_after();
            fault
        }
        RouteError::Refused(refusal) => match refusal {
            Refusal::NoWorkers(_) => Fault::new(Reason::NoWorkers, text).retry_after(MEMBERSHIP_CHANGES),
            Refusal::Busy { retry_after } => {
                Fault::new(Reason::AllWorkersBusy, text).retry_after(*retry_after)
            }
            Refusal::ContextLength { .. } => Fault::new(Reason::ContextLengthExceeded, text),
            // Nobody else has a larger pool: another worker is no remedy.
            Refusal::Pool { .. } => {
                let mut fault = Fault::new(Reason::KvExhausted, text);
                fault.scope = armature_contracts::error::Scope::Request;
                fault.retryable = false;
                fault
            }
            Refusal::BlockSize { .. } => Fault::new(Reason::BlockSizeMismatch, text),
            Refusal::HashScheme { .. } => Fault::new(Reason::HashSchemeMismatch, text),
            Refusal::PinMissing => Fault::invalid("constraints.pin_decode", text),
            Refusal::NotEligible { rank, .. } => {
                Fault::new(Reason::InstanceNotEligible, text).resource("worker", rank.to_string())
            }
        },
    }
}

/// New work while the router shuts down.
pub fn draining_fault(draining: Draining) -> Fault {
    Fault::new(Reason::Draining, draining.to_string())
}

/// A decision that is not known or no longer kept.
pub fn unknown_decision(id: &str) -> Fault {
    Fault::new(Reason::DecisionUnknown, format!("decision {id} is not known or no longer kept"))
        .resource("decision", id)
}
