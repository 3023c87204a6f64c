//! Pins: the client names the worker, and every policy only confirms that it may be used.

use armature_contracts::ids::WorkerRank;

use super::Constraints;
use crate::domain::units::Side;

impl Constraints {
    /// The worker pinned for `side`.
    pub fn pin(&self, side: Side) -> Option<WorkerRank> {
        match side {
            Side::Decode => self.pin_decode,
            Side::Prefill => self.pin_prefill,
        }
    }

    /// Whether a pin rules `rank` out for `side`.
    pub fn pinned_elsewhere(&self, side: Side, rank: WorkerRank) -> bool {
        self.pin(side).is_some_and(|pinned| pinned != rank)
    }
}
