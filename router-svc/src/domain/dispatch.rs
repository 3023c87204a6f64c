//! Route with patience: a request that fits no worker now waits in the backlog until one has room, and is decided then.
//!
//! ```text
//!              room, and nobody before it
//! submitted ------------------------------> answered
//!     |                                       ^
//!     | all workers full or deep        room  |
//!     +-------> waits ------------------------+
//!     |           |  released, late, draining, cannot be served any more
//!     |           +-----------------------------------------------------> refused
//!     | may not wait, hopeless, backlog full
//!     +-----------------------------------------------------------------> refused
//! ```
//!
//! What makes room wakes it: reports, releases, members, time. Each wake decides as many as fit and books each before it looks at the next, so
//! that no worker is given more than it has room for.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey};

use super::backlog::{Backlog, Claim, Full, Left, Offer, PoolKey, Ticket, Totals};
use super::policy::decide::RETRY_AFTER;
use super::policy::{Question, Refusal};
use super::reservations::Known;
use super::router::{Request, RouteError, Routed, Router};
use super::units::{Blocks, Time, Tokens};

/// Why a request does not wait, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotHeld {
    /// It would wait longer than it may.
    #[error("every eligible worker is full, and a wait of about {} ms is expected, {} ms are allowed", .expected.as_millis(), .allowed.as_millis())]
    Hopeless {
        /// By the queue model.
        expected: Duration,
        /// By the request or the configuration.
        allowed: Duration,
    },
    /// It has waited as long as it may.
    #[error("no worker had room within {} ms", .waited.as_millis())]
    Late {
        /// How long.
        waited: Duration,
        /// How long one that comes now would wait.
        expected: Duration,
    },
    /// Too many wait.
    #[error("every eligible worker is full, and {full}")]
    Full {
        /// Which bound.
        full: Full,
        /// By the queue model.
        expected: Duration,
    },
    /// The router shuts down.
    #[error("this router is draining")]
    Draining,
}

impl NotHeld {
    /// When to try again; none: elsewhere.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Hopeless { expected, .. } | Self::Late { expected, .. } | Self::Full { expected, .. } => {
                Some(advice(*expected))
            }
            Self::Draining => None,
        }
    }

    /// Its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hopeless { .. } => "hopeless",
            Self::Late { .. } => "late",
            Self::Full { full: Full::Requests(_), .. } => "requests",
            Self::Full { full: Full::Bytes(_), .. } => "bytes",
            Self::Full { full: Full::Calls(_), .. } => "calls",
            Self::Draining => "draining",
        }
    }
}

/// What Route says.
pub type Answer = Result<Arc<Routed>, RouteError>;

/// What became of a call.
#[derive(Debug)]
pub enum Submitted {
    /// This.
    Answered(Answer),
    /// It waits; [`Ended`] names the ticket later.
    Waits(Ticket),
}

/// A request that no longer waits.
#[derive(Debug)]
pub struct Ended {
    /// Calls that get the answer.
    pub tickets: Vec<Ticket>,
    /// How long the request waited.
    pub waited: Duration,
    /// The answer.
    pub answer: Answer,
}

/// Gives seeds of decisions.
pub type Seeds<'a> = &'a mut dyn FnMut() -> u64;

/// A router and the requests that wait for its workers.
pub struct Dispatch {
    router: Router,
    backlog: Backlog,
    open: bool,
}

impl Dispatch {
    /// Nobody waits.
    pub fn new(router: Router, backlog: Backlog) -> Self {
        Self { router, backlog, open: true }
    }

    /// The router.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The router. Whoever makes room with it wakes those that wait.
    pub fn router_mut(&mut self) -> &mut Router {
        &mut self.router
    }

    /// Gauges of what waits.
    pub fn waiting(&self) -> Totals {
        self.backlog.totals()
    }

    /// Until when the call with this ticket may wait.
    pub fn until(&self, ticket: Ticket) -> Option<Time> {
        self.backlog.until(ticket)
    }

    /// A call of Route. A key that waits is joined, one that was answered gets that answer. Others may end meanwhile, for what is due before
    /// this request is decided before it.
    pub fn submit(
        &mut self,
        request: &Request,
        claim: &Claim,
        seeds: Seeds<'_>,
        now: Time,
    ) -> (Submitted, Vec<Ended>) {
        match self.backlog.join(request.key) {
            Some(Ok(ticket)) => return (Submitted::Waits(ticket), Vec::new()),
            Some(Err(full)) => {
                let refused = NotHeld::Full { full, expected: Duration::ZERO };
                return (Submitted::Answered(Err(refused.into())), Vec::new());
            }
            None => {}
        }
        self.router.expire(now);
        match self.router.known(request.key) {
            Known::New => {}
            Known::Answered(answer) => return (Submitted::Answered(Ok(answer)), Vec::new()),
            Known::Released => return (Submitted::Answered(Err(RouteError::Released)), Vec::new()),
        }
        let pool = PoolKey::of(&request.question);
        let mut ended = self.serve(&pool, seeds, now);
        let submitted = if self.backlog.is_idle(&pool) {
            match self.router.route(request, seeds(), now) {
                Err(RouteError::Refused(Refusal::Busy { retry_after })) => {
                    self.hold(request, claim, retry_after, now)
                }
                answer => Submitted::Answered(answer),
            }
        } else {
            match self.router.assess(&request.question, now) {
                Ok(()) => self.compete(request, claim, &mut ended, seeds, now),
                Err(Refusal::Busy { retry_after }) => self.hold(request, claim, retry_after, now),
                Err(refusal) => Submitted::Answered(Err(refusal.into())),
            }
        };
        (submitted, ended)
    }

    /// A worker has reported: those that wait for workers of its kind may go on.
    pub fn reported(&mut self, instance: InstanceId, seeds: Seeds<'_>, now: Time) -> Vec<Ended> {
        match self.router.pool_of(instance, now) {
            Some(pool) if !self.backlog.is_idle(&pool) => self.serve(&pool, seeds, now),
            _ => Vec::new(),
        }
    }

    /// Ends reservations, known or not, and requests that wait for theirs.
    pub fn release(&mut self, keys: &[ReservationKey], seeds: Seeds<'_>, now: Time) -> Vec<Ended> {
        self.router.release(keys, now);
        let mut ended: Vec<_> = keys
            .iter()
            .filter_map(|key| self.backlog.withdraw(*key, now))
            .map(|left| left.with(Err(RouteError::Released)))
            .collect();
        ended.extend(self.wake(seeds, now));
        ended
    }

    /// Whatever has changed: whoever fits now goes on.
    pub fn wake(&mut self, seeds: Seeds<'_>, now: Time) -> Vec<Ended> {
        self.backlog.pools().iter().flat_map(|pool| self.serve(pool, seeds, now)).collect()
    }

    /// Ends what may wait no longer.
    pub fn expire(&mut self, now: Time) -> Vec<Ended> {
        let late = self.backlog.expire(now);
        let answer = |left: Left| {
            let expected = self.backlog.expected_last(&left.request.question);
            let refused = NotHeld::Late { waited: left.waited, expected };
            left.with(Err(refused.into()))
        };
        late.into_iter().map(answer).collect()
    }

    /// The caller is gone. Answers whether its request is, too.
    pub fn cancel(&mut self, ticket: Ticket, now: Time) -> bool {
        self.backlog.cancel(ticket, now)
    }

    /// From now on nothing waits.
    pub fn close(&mut self, now: Time) -> Vec<Ended> {
        self.open = false;
        self.backlog.clear(now).into_iter().map(|left| left.with(Err(NotHeld::Draining.into()))).collect()
    }

    /// Room is there for this request, but others wait: it gets it when its turn comes before theirs.
    fn compete(
        &mut self,
        request: &Request,
        claim: &Claim,
        ended: &mut Vec<Ended>,
        seeds: Seeds<'_>,
        now: Time,
    ) -> Submitted {
        let ticket = match self.enter(request, claim, Duration::ZERO, now) {
            Ok(ticket) => ticket,
            Err(refused) => return Submitted::Answered(Err(refused)),
        };
        let mut decided = self.serve(&PoolKey::of(&request.question), seeds, now);
        let mine =
            decided.iter().position(|it| it.tickets.contains(&ticket)).map(|at| decided.swap_remove(at));
        ended.extend(decided);
        match mine {
            Some(mine) => Submitted::Answered(mine.answer),
            None if claim.until <= now => {
                self.backlog.withdraw(request.key, now);
                let retry_after = advice(self.backlog.expected_last(&request.question));
                Submitted::Answered(Err(Refusal::Busy { retry_after }.into()))
            }
            None => Submitted::Waits(ticket),
        }
    }

    /// Nobody has room for this request; `first` is when somebody may have, by the queue model.
    fn hold(&mut self, request: &Request, claim: &Claim, first: Duration, now: Time) -> Submitted {
        if claim.until <= now || !self.backlog.enabled() {
            return Submitted::Answered(Err(Refusal::Busy { retry_after: first }.into()));
        }
        match self.enter(request, claim, first, now) {
            Ok(ticket) => Submitted::Waits(ticket),
            Err(refused) => Submitted::Answered(Err(refused)),
        }
    }

    fn enter(
        &mut self,
        request: &Request,
        claim: &Claim,
        first: Duration,
        now: Time,
    ) -> Result<Ticket, RouteError> {
        if !self.open {
            return Err(NotHeld::Draining.into());
        }
        let uncached = self.router.least_uncached(request, now);
        let expected = self.backlog.expected(&request.question, claim, uncached, now).max(first);
        let allowed = claim.until.since(now);
        // One that may not wait at all only asks whether it is its turn; and the queue model is no finer than its least advice.
        if !allowed.is_zero() && expected > allowed.max(RETRY_AFTER.0) {
            return Err(NotHeld::Hopeless { expected, allowed }.into());
        }
        let entered = self.backlog.enter(request.clone(), claim, uncached, now);
        entered.map_err(|full| NotHeld::Full { full, expected }.into())
    }

    /// Decides as many of a pool as fit.
    fn serve(&mut self, pool: &PoolKey, seeds: Seeds<'_>, now: Time) -> Vec<Ended> {
        let Self { router, backlog, .. } = self;
        if backlog.is_idle(pool) || !router.has_room(pool, backlog.has_migrated(pool), now) {
            return Vec::new();
        }
        let left = backlog.offer(pool, now, |request| match router.route(request, seeds(), now) {
            Ok(answer) => Offer::Served(given(&request.question, &answer, router), Ok(answer)),
            Err(RouteError::Refused(Refusal::Busy { .. }) | RouteError::TooMany(_)) => Offer::Stays,
            Err(error) => Offer::Ended(Err(error)),
        });
        left.into_iter().map(|(left, answer)| left.with(answer)).collect()
    }
}

impl Left {
    fn with(self, answer: Answer) -> Ended {
        Ended { tickets: self.tickets, waited: self.waited, answer }
    }
}

/// When to try again after so long a wait was expected.
fn advice(expected: Duration) -> Duration {
    expected.clamp(RETRY_AFTER.0, RETRY_AFTER.1)
}

/// Work of a request in tokens: those of the prompt that its worker computes, and those it will generate, as far as that is known.
fn given(question: &Question, answer: &Routed, router: &Router) -> Tokens {
    let computes = answer.prefill.first().unwrap_or(&answer.decode);
    let cached = cached(question, computes.matched);
    let output = question.expected_output.unwrap_or(router.settings().expected_output);
    let generated = output.0.saturating_mul(u64::from(question.choices));
    Tokens(question.prompt.0.saturating_sub(cached.0).saturating_add(generated))
}

/// Tokens of the prompt in so many of its blocks.
fn cached(question: &Question, matched: Blocks) -> Tokens {
    question.hashes.as_ref().map_or(Tokens(0), |(_, size)| size.tokens(matched))
}
