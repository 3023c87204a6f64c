//! Writes what this replica has into Consul, and keeps it there.
//!
//! Whatever changes in the store makes an instance dirty; a dirty instance is compared with what the agent has, and what differs is
//! written. So a registration, a Consul that was away and one that comes back empty are one case. Bounded by the instances and fences of
//! the store and by what the agent has, for an id is dirty or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{Instant, sleep, sleep_until};

use super::agent::{Agent, Done, Job};
use super::client::{Ask, CallError};
use super::entry;
use super::link::{Link, Occasion};
use super::metrics::ConsulMetrics;
use super::plan::{self, Step, There, Wanted};
use super::tickets::Tickets;
use crate::adapters::memory::Memory;
use crate::domain::instance::{InstanceId, ReplicaId, Status};
use crate::domain::store::{Change, Store};
use crate::domain::time::Moment;
use crate::ports::Backend as _;

/// Instances that are written at a time.
const AT_A_TIME: usize = 16;
/// Instances that are written before leases are renewed again: an agent takes milliseconds for each, and the leases have two thirds of their
/// TTL for all.
const IN_ONE_ROUND: usize = 64;
/// Pause after something could not be written.
const PAUSE: Duration = Duration::from_millis(500);

/// What it works with.
#[derive(Debug)]
pub struct Writer {
    /// Where it writes.
    pub agent: Agent,
    /// What it writes.
    pub memory: Memory,
    /// When it may.
    pub link: Arc<Link>,
    /// Who waits.
    pub tickets: Arc<Tickets>,
    /// How far behind it is.
    pub metrics: ConsulMetrics,
}

/// What is known of the agent, and what is to be looked at.
#[derive(Debug, Default)]
struct State {
    there: BTreeMap<InstanceId, There>,
    dirty: BTreeSet<InstanceId>,
    /// When each lease is to be renewed.
    due: BTreeMap<InstanceId, Instant>,
    /// Replicas that write through this process: one, outside of tests.
    holders: BTreeSet<ReplicaId>,
    /// When the agent was asked last.
    compared: Option<(Occasion, Instant)>,
}

impl Writer {
    /// Works for ever.
    pub async fn run(&self) {
        let mut state = State::default();
        let mut changes = self.memory.changes();
        let mut link = self.link.subscribe();
        loop {
            let ticket = self.tickets.issued();
            while let Some(Some(change)) = changes.next().now_or_never() {
                self.note(&mut state, change);
            }
            self.metrics.unsynced.set(state.dirty.len() as i64);
            let Some(occasion) = self.link.in_sight() else {
                // It is written when Consul is back; until then it must not pile up.
                self.memory.with(|store, now| {
                    let is_something = |id| store.knows(id) || store.fence(id, now).is_some();
                    state.dirty.retain(|id| is_something(*id) || state.there.contains_key(id));
                });
                self.tickets.settled(ticket);
                self.wait(&mut state, &mut changes, &mut link, None).await;
                continue;
            };
            let worked = self.work(&mut state, occasion).await;
            self.metrics.unsynced.set(state.dirty.len() as i64);
            if worked.is_err() || state.dirty.is_empty() {
                self.tickets.settled(ticket);
            }
            match worked {
                // There is more, or the agent had lost something.
                Ok(()) if !state.dirty.is_empty() => {}
                Ok(()) => {
                    let next = state.due.values().min().copied();
                    self.wait(&mut state, &mut changes, &mut link, next).await;
                }
                Err(error) => {
                    self.link.complain(&error);
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn wait(
        &self,
        state: &mut State,
        changes: &mut BoxStream<'static, Change>,
        link: &mut super::link::Changes,
        next: Option<Instant>,
    ) {
        let next = next.unwrap_or_else(|| Instant::now() + self.agent.ttl);
        tokio::select! {
            Some(change) = changes.next() => self.note(state, change),
            () = self.tickets.called() => {}
            () = link.changed() => {}
            () = sleep_until(next) => {}
        }
    }

    fn note(&self, state: &mut State, change: Change) {
        match change {
            Change::Put { instance, .. } => {
                state.dirty.insert(instance.id);
            }
            Change::Gone { id, .. } => {
                state.dirty.insert(id);
            }
            Change::Snapshot { instances, gone } => {
                state.dirty.extend(instances.iter().map(|(instance, _)| instance.id));
                state.dirty.extend(gone.iter().map(|(id, _)| *id));
                state.dirty.extend(state.there.keys());
            }
            Change::Unreachable => {}
        }
    }

    /// Renews every lease that is due and writes some of what is dirty; what could not be written stays dirty.
    async fn work(&self, state: &mut State, occasion: Occasion) -> Result<(), CallError> {
        let known =
            state.compared.is_some_and(|(last, at)| last == occasion && at.elapsed() < self.agent.ttl);
        if !known {
            self.compare(state).await?;
            self.agent.fences.sweep(&self.agent.client, &self.agent.names).await?;
            state.compared = Some((occasion, Instant::now()));
        }
        let now = Instant::now();
        let due: BTreeSet<InstanceId> =
            state.due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        let mut ids = due.clone();
        while ids.len() < due.len() + IN_ONE_ROUND
            && let Some(id) = state.dirty.pop_first()
        {
            ids.insert(id);
        }
        let mut jobs: Vec<Job> = self.memory.with(|store, now| {
            ids.iter().filter_map(|id| self.job(store, now, *id, state, due.contains(id))).collect()
        });
        jobs.sort_by_key(|job| !due.contains(&job.id));
        // Until it is done; what needs nothing any more is not due again.
        state.dirty.extend(jobs.iter().map(|job| job.id));
        state.due.retain(|id, _| !due.contains(id) || state.dirty.contains(id));
        state.holders.extend(jobs.iter().filter_map(|job| job.wanted.as_ref()).map(|(own, _)| own.holder));
        let mut worked = Ok(());
        let mut working = stream::iter(jobs).map(|job| self.agent.work(job)).buffer_unordered(AT_A_TIME);
        while let Some(Done { id, there, result }) = working.next().await {
            // What the agent had lost is looked at again.
            if result.is_ok() && there.is_some() {
                state.dirty.remove(&id);
            }
            self.renew_later(state, id, there);
            worked = result.and(worked);
        }
        drop(working);
        if worked.is_ok() {
            self.link.content();
        }
        worked
    }

    fn renew_later(&self, state: &mut State, id: InstanceId, there: Option<There>) {
        // Up to a fifth earlier than a third of the TTL, so that the renewals of many leases spread.
        let later = (self.agent.ttl / 3).mul_f64(rand::random_range(0.8..=1.0));
        match &there {
            Some(it) if it.leased == Some(true) => state.due.insert(id, Instant::now() + later),
            _ => state.due.remove(&id),
        };
        match there {
            Some(it) => state.there.insert(id, it),
            None => state.there.remove(&id),
        };
    }

    /// Asks the agent what it has, and makes dirty what may differ from what it should have.
    async fn compare(&self, state: &mut State) -> Result<(), CallError> {
        let answer = self.agent.client.ask(Ask::get("agent_services", "/v1/agent/services")).await?;
        let mut before = std::mem::take(&mut state.there);
        for (record, entry) in entry::of_agent(&answer.body) {
            let id = entry.instance.id;
            let known = before.remove(&id).filter(|known| known.record == record);
            let there = known.unwrap_or(There {
                component: entry.instance.component,
                holder: entry.holder,
                epoch: entry.instance.epoch,
                record,
                leased: None,
                maintenance: None,
            });
            state.there.insert(id, there);
        }
        state.dirty.extend(state.there.keys());
        state.dirty.extend(before.keys());
        self.memory.with(|store, _| {
            if let Change::Snapshot { instances, gone } = store.snapshot() {
                state.dirty.extend(instances.iter().map(|(instance, _)| instance.id));
                state.dirty.extend(gone.iter().map(|(id, _)| *id));
            }
        });
        Ok(())
    }

    /// What is to be done for an instance, if anything.
    fn job(&self, store: &Store, now: Moment, id: InstanceId, state: &State, due: bool) -> Option<Job> {
        let there = state.there.get(&id).cloned();
        let wanted = store.own(id).map(|own| {
            let maintenance = own.instance.status != Status::Ready;
            let (holder, epoch) = (own.holder, own.instance.epoch);
            let wanted =
                Wanted { holder, epoch, record: entry::record(&own), leased: own.leased, maintenance };
            (own, wanted)
        });
        let useless = there.as_ref().is_some_and(|it| {
            // Others needed its room.
            let forgotten = !store.knows(id) && state.holders.contains(&it.holder);
            store.obsolete(id, it.epoch, it.holder, now) || forgotten
        });
        let mut steps = plan::steps(wanted.as_ref().map(|(_, wanted)| wanted), there.as_ref(), useless);
        let written =
            wanted.as_ref().zip(there.as_ref()).filter(|((_, it), there)| it.record == there.record);
        if due && steps.is_empty() && written.is_some_and(|((_, wanted), _)| wanted.leased) {
            steps.push(Step::Lease(true));
        }
        let fence = store.fence(id, now).filter(|(epoch, _)| !self.agent.fences.covers(id, *epoch));
        (fence.is_some() || !steps.is_empty()).then_some(Job { id, fence, steps, wanted, there })
    }
}
