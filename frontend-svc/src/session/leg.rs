//! One leg as a stream: routed, asked, followed. Dropping it anywhere cancels the work and releases the reservation.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::ReservationKey;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use tokio::time::Instant;

use super::prepare::Prepared;
use crate::domain::leg::{Failure, LegPlan};
use crate::ports::{Decision, Routing, WorkerEvent, WorkerStream, Workers};

/// What happens to a leg. The last one is Failed, or [`WorkerEvent::Finished`].
#[derive(Debug)]
pub enum LegEvent {
    /// A router has decided.
    Placed(Decision),
    /// The worker says something.
    Worker(WorkerEvent),
    /// It is over too early.
    Failed(Failure),
}

/// A leg on its way.
pub type LegStream = BoxStream<'static, LegEvent>;

enum Step {
    Pause(Duration),
    Route,
    Ask(Decision),
    Follow(WorkerStream),
    Over,
}

struct Leg {
    step: Step,
    routing: Arc<dyn Routing>,
    workers: Arc<dyn Workers>,
    request: Arc<Prepared>,
    plan: LegPlan,
    queue_until: Instant,
    reservation: Option<Reservation>,
}

/// Releases on drop.
pub(super) struct Reservation {
    routing: Arc<dyn Routing>,
    key: ReservationKey,
    router: String,
}

impl Reservation {
    /// What `router` has booked under `key`.
    pub(super) fn new(routing: Arc<dyn Routing>, key: ReservationKey, router: String) -> Self {
        Self { routing, key, router }
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.key, self.router)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.routing.release(self.key, &self.router);
    }
}

/// What a leg begins with.
#[derive(Debug)]
pub struct Start {
    /// What is to be done.
    pub plan: LegPlan,
    /// Before anybody is asked.
    pub pause: Duration,
    /// Until then the router may wait for a worker that has room.
    pub queue_until: Instant,
}

/// Runs a leg.
pub fn run(
    routing: Arc<dyn Routing>,
    workers: Arc<dyn Workers>,
    request: Arc<Prepared>,
    start: Start,
) -> LegStream {
    let Start { plan, pause, queue_until } = start;
    let step = if pause.is_zero() { Step::Route } else { Step::Pause(pause) };
    let leg = Leg { step, routing, workers, request, plan, queue_until, reservation: None };
    stream::unfold(leg, |mut leg| async move {
        let event = leg.next().await?;
        Some((event, leg))
    })
    .boxed()
}

impl Leg {
    async fn next(&mut self) -> Option<LegEvent> {
        if let Step::Pause(pause) = self.step {
            tokio::time::sleep(pause).await;
            self.step = Step::Route;
        }
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Route => {
                Some(match self.routing.route(&self.request, &self.plan, self.queue_until).await {
                    Ok(decision) => {
                        self.reservation = Some(Reservation::new(
                            self.routing.clone(),
                            self.plan.reservation,
                            decision.router.clone(),
                        ));
                        self.step = Step::Ask(decision.clone());
                        LegEvent::Placed(decision)
                    }
                    Err(fault) => LegEvent::Failed(Failure { fault, contacted: false }),
                })
            }
            Step::Ask(decision) => match self.workers.generate(&self.request, &self.plan, &decision).await {
                Ok(stream) => self.follow(stream).await,
                Err(failure) => Some(LegEvent::Failed(failure)),
            },
            Step::Follow(stream) => self.follow(stream).await,
            Step::Pause(_) | Step::Over => None,
        }
    }

    async fn follow(&mut self, mut stream: WorkerStream) -> Option<LegEvent> {
        Some(match stream.next().await {
            Some(Ok(event)) => {
                if !matches!(event, WorkerEvent::Finished(_)) {
                    self.step = Step::Follow(stream);
                }
                LegEvent::Worker(event)
            }
            Some(Err(failure)) => LegEvent::Failed(failure),
            None => {
                let fault = Fault::new(Reason::WorkerLost, "the worker's stream ended early");
                LegEvent::Failed(Failure { fault, contacted: true })
            }
        })
    }
}
