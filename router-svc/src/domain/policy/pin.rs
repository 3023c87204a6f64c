//! Direct choice: the client names the worker, and every other policy only confirms that it may be used.

use armature_contracts::ids::WorkerRank;

use super::Constraints;
use crate::domain::units::Side;

/// Whether a pin rules `rank` out for `side`.
pub fn forbids(constraints: &Constraints, side: Side, rank: WorkerRank) -> bool {
    let pin = match side {
        Side::Decode => constraints.pin_decode,
        Side::Prefill => constraints.pin_prefill,
    };
    pin.is_some_and(|pinned| pinned != rank)
}
