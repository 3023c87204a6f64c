//! The backlog: requests that wait for room at a worker, in order, bounded by number and bytes.
//!
//! Workers queue little, so that a request is bound to one when it can begin: with the locality and load of that moment. What waits meanwhile is
//! here, a pool per served set:
//!
//! - migrated requests come first, four in a row while new ones wait;
//! - then tenants take turns by what they were given ([`shares`]);
//! - of a tenant's own requests class, deadline and work decide, aged ([`place`]).
//!
//! A request that fits nobody does not hold up those behind it. Nothing here knows workers: [`Backlog::offer`] asks who fits.

pub mod pace;
pub mod place;
mod pool;
#[cfg(test)]
mod properties;
pub mod shares;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::ReservationKey;

use self::place::Place;
use self::pool::{Flow, Pool};
use self::shares::Tenant;
use super::policy::{Constraints, Question};
use super::router::Request;
use super::units::{SequenceHash, Time, Tokens};
use super::worker::ServedSet;

/// Calls that may wait for one and the same reservation.
const MAX_TICKETS: usize = 16;
/// Pools without requests whose pace is remembered.
const MAX_IDLE_POOLS: usize = 64;

/// How much may wait, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests; 0: nothing waits.
    pub max_requests: usize,
    /// Bytes of their hash lists and of what else they hold.
    pub max_bytes: usize,
    /// Waiting so long is worth one class; positive.
    pub aging: Duration,
    /// Whether tenants take turns; else all are one.
    pub fair: bool,
}

/// Names one call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What a request may claim of the backlog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Whose it is.
    pub tenant: Tenant,
    /// Higher goes first, within a tenant; clamped to -8..=8.
    pub priority: i32,
    /// It may wait until then.
    pub until: Time,
}

/// Workers that wait is for: those of one served set in one deployment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    namespace: Arc<str>,
    set: ServedSet,
}

impl PoolKey {
    /// Of workers that serve `set` in `namespace`.
    pub fn new(namespace: Arc<str>, set: ServedSet) -> Self {
        Self { namespace, set }
    }

    /// Of those who can answer `question`.
    pub fn of(question: &Question) -> Self {
        Self::new(question.namespace.clone(), question.set.clone())
    }

    /// Whether it is this one.
    pub fn is(&self, namespace: &str, set: &ServedSet) -> bool {
        *self.namespace == *namespace && self.set == *set
    }
}

/// The bound that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Of requests.
    #[error("{0} requests wait already")]
    Requests(usize),
    /// Of bytes.
    #[error("requests of {0} bytes wait already")]
    Bytes(usize),
    /// Of calls for one reservation.
    #[error("{0} calls wait for this reservation already")]
    Calls(usize),
}

/// A request that no longer waits.
#[derive(Debug)]
pub struct Left {
    /// Which.
    pub request: Request,
    /// Calls that waited for it.
    pub tickets: Vec<Ticket>,
    /// How long it waited.
    pub waited: Duration,
}

/// What became of a request that was offered.
#[derive(Debug)]
pub enum Offer<T> {
    /// It has a worker, and so many tokens of work.
    Served(Tokens, T),
    /// It cannot be served at all.
    Ended(T),
    /// It fits nobody now.
    Stays,
}

/// Gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Requests that wait.
    pub requests: usize,
    /// Calls that wait for them.
    pub calls: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Tenants that wait or are remembered.
    pub tenants: usize,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    pool: PoolKey,
    flow: Flow,
    place: Place,
    since: Time,
    until: Time,
    tickets: Vec<Ticket>,
    bytes: usize,
}

/// Requests that wait.
#[derive(Debug)]
pub struct Backlog {
    bounds: Bounds,
    entries: HashMap<ReservationKey, Entry>,
    tickets: HashMap<Ticket, ReservationKey>,
    pools: HashMap<PoolKey, Pool>,
    deadlines: BTreeSet<(Time, ReservationKey)>,
    bytes: usize,
    requests_ever: u64,
    tickets_ever: u64,
}

impl Backlog {
    /// Nothing waits yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            entries: HashMap::new(),
            tickets: HashMap::new(),
            pools: HashMap::new(),
            deadlines: BTreeSet::new(),
            bytes: 0,
            requests_ever: 0,
            tickets_ever: 0,
        }
    }

    /// Whether anything may wait at all.
    pub fn enabled(&self) -> bool {
        self.bounds.max_requests > 0
    }

    /// Whether this request waits.
    pub fn waits(&self, key: ReservationKey) -> bool {
        self.entries.contains_key(&key)
    }

    /// Whether nobody waits for these workers.
    pub fn is_idle(&self, pool: &PoolKey) -> bool {
        self.pools.get(pool).is_none_or(Pool::is_empty)
    }

    /// Pools in which somebody waits.
    pub fn pools(&self) -> Vec<PoolKey> {
        let waits = self.pools.iter().filter(|(_, pool)| !pool.is_empty());
        waits.map(|(key, _)| key.clone()).collect()
    }

    /// Whether a migrated request waits for these workers.
    pub fn has_migrated(&self, pool: &PoolKey) -> bool {
        self.pools.get(pool).is_some_and(Pool::has_migrated)
    }

    /// Another call for a request that waits: it gets the same answer.
    pub fn join(&mut self, key: ReservationKey) -> Option<Result<Ticket, Full>> {
        let entry = self.entries.get_mut(&key)?;
        if entry.tickets.len() >= MAX_TICKETS {
            return Some(Err(Full::Calls(entry.tickets.len())));
        }
        self.tickets_ever += 1;
        let ticket = Ticket(self.tickets_ever);
        entry.tickets.push(ticket);
        self.tickets.insert(ticket, key);
        Some(Ok(ticket))
    }

    /// How long such a request would wait, by how fast others leave; zero when nobody has left yet.
    pub fn expected(&self, question: &Question, claim: &Claim, uncached: Tokens, now: Time) -> Duration {
        let Some(pool) = self.pools.get(&PoolKey::of(question)) else { return Duration::ZERO };
        let place = self.place(claim, uncached, now);
        pool.pace.wait(pool.before(&self.flow(question, claim), place) + 1)
    }

    /// How long one that comes last would wait, likewise.
    pub fn expected_last(&self, question: &Question) -> Duration {
        let pool = self.pools.get(&PoolKey::of(question));
        pool.map_or(Duration::ZERO, |pool| pool.pace.wait(pool.len() + 1))
    }

    /// A request begins to wait. Its key must not wait already: [`Self::join`] is for that.
    pub fn enter(
        &mut self,
        request: Request,
        claim: &Claim,
        uncached: Tokens,
        now: Time,
    ) -> Result<Ticket, Full> {
        let bytes = bytes(&request, claim);
        if self.entries.len() >= self.bounds.max_requests {
            return Err(Full::Requests(self.entries.len()));
        }
        if self.bytes.saturating_add(bytes) > self.bounds.max_bytes {
            return Err(Full::Bytes(self.bytes));
        }
        let place = self.place(claim, uncached, now);
        self.requests_ever += 1;
        self.tickets_ever += 1;
        let (key, ticket) = (request.key, Ticket(self.tickets_ever));
        let (flow, name) = (self.flow(&request.question, claim), PoolKey::of(&request.question));
        if !self.pools.contains_key(&name) {
            self.forget_pools();
        }
        let pool = self.pools.entry(name.clone()).or_default();
        if pool.is_empty() {
            pool.pace.begin(now);
        }
        pool.insert(&flow, place, key);
        self.deadlines.insert((claim.until, key));
        self.tickets.insert(ticket, key);
        self.bytes += bytes;
        let (until, tickets) = (claim.until, vec![ticket]);
        self.entries
            .insert(key, Entry { request, pool: name, flow, place, since: now, until, tickets, bytes });
        Ok(ticket)
    }

    /// Offers the requests of a pool, in order, until nobody is left that fits.
    pub fn offer<T>(
        &mut self,
        name: &PoolKey,
        now: Time,
        mut decide: impl FnMut(&Request) -> Offer<T>,
    ) -> Vec<(Left, T)> {
        let mut left = Vec::new();
        let mut served = 0;
        let mut stuck = Stuck::default();
        while let Some(pool) = self.pools.get(name) {
            let fits =
                |key: &ReservationKey| self.entries.get(key).is_some_and(|it| !stuck.covers(&it.request));
            let Some(next) = pool.next(fits) else { break };
            let Some(entry) = self.entries.get(&next.key) else { break };
            let outcome = match decide(&entry.request) {
                Offer::Served(given, outcome) => {
                    if let Some(pool) = self.pools.get_mut(name) {
                        pool.serve(&next, &entry.flow, given);
                    }
                    served += 1;
                    outcome
                }
                Offer::Ended(outcome) => outcome,
                Offer::Stays => {
                    stuck.add(&entry.request);
                    continue;
                }
            };
            left.extend(self.withdraw(next.key, now).map(|gone| (gone, outcome)));
        }
        if let Some(pool) = self.pools.get_mut(name) {
            pool.pace.left(served, now);
        }
        left
    }

    /// Takes a request out, if it waits.
    pub fn withdraw(&mut self, key: ReservationKey, now: Time) -> Option<Left> {
        let entry = self.entries.remove(&key)?;
        if let Some(pool) = self.pools.get_mut(&entry.pool) {
            pool.remove(&entry.flow, entry.place);
        }
        self.deadlines.remove(&(entry.until, key));
        for ticket in &entry.tickets {
            self.tickets.remove(ticket);
        }
        self.bytes -= entry.bytes;
        Some(Left { request: entry.request, tickets: entry.tickets, waited: now.since(entry.since) })
    }

    /// The caller is gone; the request is, too, when nobody else waits for it. Answers whether it is.
    pub fn cancel(&mut self, ticket: Ticket, now: Time) -> bool {
        let Some(key) = self.tickets.remove(&ticket) else { return false };
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        entry.tickets.retain(|other| *other != ticket);
        entry.tickets.is_empty() && self.withdraw(key, now).is_some()
    }

    /// Takes out those that may wait no longer.
    pub fn expire(&mut self, now: Time) -> Vec<Left> {
        let mut late = Vec::new();
        while let Some(&(until, key)) = self.deadlines.first()
            && until <= now
        {
            self.deadlines.pop_first();
            late.extend(self.withdraw(key, now));
        }
        late
    }

    /// Takes all out.
    pub fn clear(&mut self, now: Time) -> Vec<Left> {
        let keys: Vec<_> = self.entries.keys().copied().collect();
        keys.into_iter().filter_map(|key| self.withdraw(key, now)).collect()
    }

    /// Until when the call with this ticket may wait.
    pub fn until(&self, ticket: Ticket) -> Option<Time> {
        Some(self.entries.get(self.tickets.get(&ticket)?)?.until)
    }

    /// Gauges.
    pub fn totals(&self) -> Totals {
        let tenants = self.pools.values().map(Pool::tenants).sum();
        Totals { requests: self.entries.len(), calls: self.tickets.len(), bytes: self.bytes, tenants }
    }

    fn place(&self, claim: &Claim, uncached: Tokens, now: Time) -> Place {
        let number = self.requests_ever + 1;
        Place::new(claim.priority, claim.until, uncached, now, self.bounds.aging, number)
    }

    fn flow(&self, question: &Question, claim: &Claim) -> Flow {
        if question.migrated {
            Flow::Migrated
        } else if self.bounds.fair {
            Flow::Of(claim.tenant.clone())
        } else {
            Flow::Of(Tenant::from(""))
        }
    }

    fn forget_pools(&mut self) {
        if self.pools.values().filter(|pool| pool.is_empty()).count() >= MAX_IDLE_POOLS {
            self.pools.retain(|_, pool| !pool.is_empty());
        }
    }
}

/// Requests that fit nobody, of one offer: room only gets less while it lasts, so that whoever wants the same or more fits nobody either.
#[derive(Default)]
struct Stuck {
    keys: HashSet<ReservationKey>,
    plain: Vec<Arc<Question>>,
}

impl Stuck {
    fn add(&mut self, request: &Request) {
        if is_plain(&request.question.constraints) {
            self.plain.push(request.question.clone());
        } else {
            self.keys.insert(request.key);
        }
    }

    fn covers(&self, request: &Request) -> bool {
        if self.keys.contains(&request.key) {
            return true;
        }
        let question = &request.question;
        let wants_more = |stuck: &Arc<Question>| {
            stuck.prompt <= question.prompt
                && stuck.migrated == question.migrated
                && stuck.hashes == question.hashes
                && stuck.constraints.prefill == question.constraints.prefill
        };
        is_plain(&question.constraints) && self.plain.iter().any(wants_more)
    }
}

/// Whether any worker would do.
fn is_plain(constraints: &Constraints) -> bool {
    let Constraints { prefill, session, overrides, .. } = *constraints;
    *constraints == Constraints { prefill, session, overrides, ..Constraints::default() }
}

/// Bytes that a waiting request holds, roughly.
fn bytes(request: &Request, claim: &Claim) -> usize {
    let constraints = &request.question.constraints;
    let labels: usize = constraints.labels.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
    let adapter = constraints.adapter.as_ref().map_or(0, |adapter| adapter.name().len());
    size_of::<Entry>()
        + size_of::<Question>()
        + size_of_val(constraints.exclude.as_slice())
        + size_of_val(constraints.allow.as_slice())
        + adapter
        + labels
        + claim.tenant.len()
        + request.prompt.len() * size_of::<SequenceHash>()
        // Its place in maps and sets.
        + 256
}
