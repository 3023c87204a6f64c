//! One worker's part of a request: which choices it generates, under which reservation, and what its failure means.

use armature_contracts::error::{Fault, Reason, Scope};
use armature_contracts::ids::{ReservationKey, WorkerRank};

/// Numbers the legs of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LegId(pub u32);

/// What is to be routed and generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegPlan {
    /// Which leg.
    pub leg: LegId,
    /// Key of this attempt.
    pub reservation: ReservationKey,
    /// Choices by index, each with the tokens that earlier workers generated for it.
    pub choices: Vec<(u32, Vec<u32>)>,
    /// Workers that are not to be chosen again.
    pub exclude: Vec<WorkerRank>,
    /// It replaces a leg that a worker had taken: it goes before new requests.
    pub migrated: bool,
}

impl LegPlan {
    /// Whether nobody has been asked before: what was chosen for the request elsewhere still stands.
    pub fn is_first(&self) -> bool {
        self.reservation.attempt == 1 && !self.migrated && self.exclude.is_empty()
    }

    /// Tokens that earlier workers generated.
    pub fn generated(&self) -> usize {
        self.choices.iter().map(|(_, tokens)| tokens.len()).sum()
    }
}

/// A leg that ended before its choices did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub fault: Fault,
    /// False when the request certainly never reached the worker (no connection): then it cannot have killed it.
    pub contacted: bool,
}

/// What a failure means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The worker is gone, with this request on it.
    Death,
    /// The worker gives the request up, or cannot be reached; it costs nothing to go on elsewhere.
    Moved,
    /// The worker does not take it: to ask another one is a retry.
    Refused,
    /// No worker would do better.
    Final,
}

/// Reads a failure. `admitted`: the worker had said Started.
pub fn meaning(failure: &Failure, admitted: bool) -> Meaning {
    let fault = &failure.fault;
    if fault.scope != Scope::ThisWorker {
        return Meaning::Final;
    }
    match fault.reason {
        Reason::WorkerLost if !failure.contacted => Meaning::Moved,
        Reason::WorkerLost => Meaning::Death,
        Reason::EngineFailed | Reason::Internal if admitted => Meaning::Death,
        _ if admitted => Meaning::Moved,
        _ => Meaning::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_read_by_scope_and_moment() {
        let read = |reason, admitted, contacted| {
            meaning(&Failure { fault: Fault::new(reason, ""), contacted }, admitted)
        };
        assert_eq!(read(Reason::WorkerLost, true, true), Meaning::Death);
        assert_eq!(read(Reason::WorkerLost, false, true), Meaning::Death);
        assert_eq!(read(Reason::WorkerLost, false, false), Meaning::Moved);
        assert_eq!(read(Reason::EngineFailed, true, true), Meaning::Death);
        assert_eq!(read(Reason::Draining, true, true), Meaning::Moved);
        assert_eq!(read(Reason::Draining, false, true), Meaning::Refused);
        assert_eq!(read(Reason::WorkerBusy, false, true), Meaning::Refused);
        assert_eq!(read(Reason::AllWorkersBusy, false, true), Meaning::Final);
        assert_eq!(read(Reason::InvalidArgument, false, true), Meaning::Final);
    }
}
