//! A request that somebody else runs: it is prepared and routed, and its reservation held.

use std::sync::Arc;

use armature_contracts::error::{Fault, Reason};
use tokio::time::{Instant, sleep};

use super::caller::Caller;
use super::leg::Reservation;
use super::pipeline::{Admission, Pipeline};
use crate::domain::flight::Flight;
use crate::domain::prompt::Ask;
use crate::ports::Decision;
use crate::session::generate::HOLD_PAUSE;

/// A decision. Dropping it gives the reservation back.
#[derive(Debug)]
pub struct Picked {
    decision: Decision,
    _reservation: Reservation,
    _admission: Admission,
}

impl Picked {
    /// Who should run it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }
}

impl Pipeline {
    /// Checks and routes a request. While nobody is READY it waits, as [`Pipeline::open`] does.
    pub async fn pick(self: &Arc<Self>, ask: Ask, caller: Caller) -> Result<Picked, Fault> {
        let admission = self.admit()?;
        let queue_until = self.queue_until(&caller);
        let request = self.prepare(ask, caller).await?;
        let (_, plan) = Flight::new(request.params.n, self.settings.limits, self.draw());
        let until = Instant::now() + self.settings.hold;
        let routing = self.outside.routing.clone();
        let decision = loop {
            match routing.route(&request, &plan, queue_until).await {
                Err(fault) if fault.reason == Reason::NoWorkers && Instant::now() < until => {
                    sleep(HOLD_PAUSE).await;
                }
                decided => break decided?,
            }
        };
        let reservation = Reservation::new(routing, plan.reservation, decision.router.clone());
        Ok(Picked { decision, _reservation: reservation, _admission: admission })
    }
}
