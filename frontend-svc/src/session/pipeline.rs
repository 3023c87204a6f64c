//! What all requests share, and the way in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_svc_kit::call::Call;
use armature_svc_kit::drain::{Drain, InFlight};
use http::{HeaderMap, HeaderName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tower::retry::budget::{Budget as _, TpsBudget};

use super::caller::Caller;
use super::generate::Generation;
use super::prepare::{Prepared, check_ids, prepare, tokens_of};
use crate::domain::deaths::{Deaths, Fingerprint};
use crate::domain::flight::Limits;
use crate::domain::params::Invalid;
use crate::domain::prompt::{Ask, Input};
use crate::metrics::Metrics;
use crate::models::catalogue::{Catalogue, ServedSet};
use crate::ports::{Calendar, Entropy, Routing, Workers};

/// Time over which the retry budget counts.
const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// Retries a second that are always allowed.
const BUDGET_FLOOR: u32 = 3;
/// Retries per request beyond that.
const BUDGET_SHARE: f32 = 0.1;
/// Fingerprints of requests present at deaths.
const DEATHS_KEPT: usize = 1024;
/// When a client that was refused at the limit may come back: requests last seconds.
const COME_BACK: Duration = Duration::from_secs(1);

/// Limits and identity.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The deployment.
    pub namespace: String,
    /// Generations at a time.
    pub max_in_flight: usize,
    /// Longest wait for the first token when the client names no deadline.
    pub first_token: Duration,
    /// Longest wait between tokens.
    pub between_tokens: Duration,
    /// How often a request may try.
    pub limits: Limits,
    /// Longest wait for somebody to be READY.
    pub hold: Duration,
    /// Wait for room at a worker of a request that names none.
    pub max_queue: Duration,
    /// Header in which a trusted proxy names the tenant.
    pub tenant_header: Option<HeaderName>,
}

/// The outside, as arguments.
pub struct Outside {
    /// Routers.
    pub routing: Arc<dyn Routing>,
    /// Workers.
    pub workers: Arc<dyn Workers>,
    /// Models.
    pub catalogue: watch::Receiver<Arc<Catalogue>>,
    /// Time of day.
    pub calendar: Arc<dyn Calendar>,
    /// Random numbers.
    pub entropy: Arc<dyn Entropy>,
    /// The end.
    pub drain: Drain,
}

/// What all requests share.
pub struct Pipeline {
    pub(super) outside: Outside,
    pub(super) settings: Settings,
    /// Instruments.
    pub metrics: Metrics,
    slots: Arc<Semaphore>,
    budget: TpsBudget,
    deaths: Mutex<Deaths>,
    origin: Instant,
}

/// A request's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Admission {
    _slot: OwnedSemaphorePermit,
    _work: InFlight,
}

impl Pipeline {
    /// A pipeline without requests.
    pub fn new(outside: Outside, settings: Settings, metrics: Metrics) -> Self {
        let slots = Arc::new(Semaphore::new(settings.max_in_flight.min(Semaphore::MAX_PERMITS)));
        Self {
            outside,
            settings,
            metrics,
            slots,
            budget: TpsBudget::new(BUDGET_WINDOW, BUDGET_FLOOR, BUDGET_SHARE),
            deaths: Mutex::new(Deaths::new(DEATHS_KEPT)),
            origin: Instant::now(),
        }
    }

    /// The models of this moment.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.outside.catalogue.borrow().clone()
    }

    /// The models as they change.
    pub fn catalogue_changes(&self) -> watch::Receiver<Arc<Catalogue>> {
        self.outside.catalogue.clone()
    }

    /// Who asks, by the headers of a request.
    pub fn caller(&self, call: Call, headers: &HeaderMap) -> Result<Caller, Invalid> {
        Caller::from_headers(call, headers, self.settings.tenant_header.as_ref())
    }

    /// Until when a request of this caller may wait for room at a worker.
    pub(super) fn queue_until(&self, caller: &Caller) -> Instant {
        let wanted = caller.max_queue.unwrap_or(self.settings.max_queue);
        Instant::now() + wanted.min(self.settings.first_token)
    }

    /// 128 random bits.
    pub fn draw(&self) -> u128 {
        self.outside.entropy.bits()
    }

    /// Seconds since 1970.
    pub fn unix_time(&self) -> i64 {
        self.outside.calendar.now().timestamp().as_second()
    }

    /// Checks, routes and starts a request; returns with its first delta at hand. Dropping the future, or what it returns, cancels everything.
    pub async fn open(self: &Arc<Self>, ask: Ask, caller: Caller) -> Result<Generation, Fault> {
        let admission = self.admit()?;
        let request = self.prepare(ask, caller).await?;
        let fingerprint = request.fingerprint();
        if let Some(left) = self.refused(fingerprint) {
            self.metrics.refused_fingerprints.inc();
            let message =
                format!("workers died with this request on them; it is refused for {} s", left.as_secs());
            return Err(Fault::new(Reason::QueryOfDeath, message));
        }
        self.budget.deposit();
        Generation::start(self.clone(), request, admission, fingerprint).await
    }

    /// Tokens of a conversation or a text, as a request for `model` would have them.
    pub async fn tokenize(&self, model: &str, input: Input) -> Result<Vec<u32>, Fault> {
        let set = self.catalogue().find(model, 0.0)?;
        tokens_of(input, &set, self.outside.calendar.now()).await
    }

    /// Text of tokens of `model`.
    pub fn detokenize(&self, model: &str, ids: &[u32]) -> Result<String, Fault> {
        let set = self.catalogue().find(model, 0.0)?;
        check_ids("token_ids", ids, &set)?;
        Ok(set.tokenizer.text(ids, false))
    }

    pub(super) async fn prepare(&self, ask: Ask, caller: Caller) -> Result<Prepared, Fault> {
        let bits = self.draw();
        // 24 bits are what a float in [0, 1) holds exactly.
        let share = (bits >> 104) as f32 / (1_u32 << 24) as f32;
        let set = self.find(&ask.model, share, caller.call.deadline).await?;
        let now = self.outside.calendar.now();
        prepare(ask, caller, set, &self.settings.namespace, now, bits as u64).await
    }

    /// The set that `model` names. One that was served a moment ago is waited for: its last worker may be restarting.
    async fn find(
        &self,
        model: &str,
        share: f32,
        deadline: Option<Instant>,
    ) -> Result<Arc<ServedSet>, Fault> {
        let mut catalogues = self.catalogue_changes();
        let now = Instant::now();
        let lost = catalogues.borrow_and_update().lost(model);
        if lost.is_none_or(|since| now.duration_since(since) >= self.settings.hold) {
            return self.catalogue().find(model, share);
        }
        self.metrics.held.inc();
        let end = now + self.settings.hold;
        let until = deadline.map_or(end, |deadline| deadline.min(end));
        let back = catalogues.wait_for(|catalogue| catalogue.lost(model).is_none());
        // Back or not, the catalogue of that moment has the answer.
        let _ = timeout_at(until, back).await;
        self.catalogue().find(model, share)
    }

    pub(super) fn admit(&self) -> Result<Admission, Fault> {
        let work = self
            .outside
            .drain
            .enter()
            .map_err(|draining| Fault::new(Reason::Draining, draining.to_string()))?;
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| {
            let limit = self.settings.max_in_flight;
            let message = format!("this frontend has its limit of {limit} requests in flight");
            Fault::new(Reason::Overloaded, message).retry_after(COME_BACK)
        })?;
        Ok(Admission { _slot: slot, _work: work })
    }

    pub(super) fn may_retry(&self) -> bool {
        self.budget.withdraw()
    }

    pub(super) fn record_death(&self, fingerprint: Fingerprint) {
        self.lock_deaths().record(fingerprint, self.origin.elapsed());
    }

    fn refused(&self, fingerprint: Fingerprint) -> Option<Duration> {
        self.lock_deaths().refused(fingerprint, self.origin.elapsed())
    }

    fn lock_deaths(&self) -> std::sync::MutexGuard<'_, Deaths> {
        // The list is valid after any panic: it has no invariant across its entries.
        self.deaths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
