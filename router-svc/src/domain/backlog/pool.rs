//! Requests that wait for the workers of one served set, and who of them is next.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use armature_contracts::ids::ReservationKey;

use super::pace::Pace;
use super::place::Place;
use super::shares::{Shares, Tenant};
use crate::domain::units::Tokens;

/// After so many migrated requests in a row a new one is next, if one fits: the streams of a lost worker must not stop all others. Workers
/// keep the same measure.
const MIGRATED_IN_A_ROW: u32 = 4;

/// Whose request it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Flow {
    /// Begun by a worker that was lost: before all tenants' new ones, and at nobody's cost.
    Migrated,
    /// New, of this tenant.
    Of(Tenant),
}

/// The next request, and the tenants before it of whom nothing fits.
pub(super) struct Next {
    pub(super) key: ReservationKey,
    passed: Vec<Tenant>,
}

/// Waiting requests of one served set.
#[derive(Debug, Default)]
pub(super) struct Pool {
    migrated: BTreeMap<Place, ReservationKey>,
    in_a_row: u32,
    tenants: HashMap<Tenant, Line>,
    /// (tag, number of the line, tenant): the first is next.
    turns: BTreeSet<(u64, u64, Tenant)>,
    shares: Shares,
    lines: u64,
    /// How fast they leave.
    pub(super) pace: Pace,
}

#[derive(Debug, Default)]
struct Line {
    turn: (u64, u64),
    requests: BTreeMap<Place, ReservationKey>,
}

impl Pool {
    pub(super) fn is_empty(&self) -> bool {
        self.migrated.is_empty() && self.tenants.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.migrated.len() + self.tenants.values().map(|line| line.requests.len()).sum::<usize>()
    }

    pub(super) fn has_migrated(&self) -> bool {
        !self.migrated.is_empty()
    }

    /// Tenants that wait or are remembered.
    pub(super) fn tenants(&self) -> usize {
        self.shares.tenants()
    }

    pub(super) fn insert(&mut self, flow: &Flow, place: Place, key: ReservationKey) {
        let tenant = match flow {
            Flow::Migrated => {
                self.migrated.insert(place, key);
                return;
            }
            Flow::Of(tenant) => tenant,
        };
        let line = self.tenants.entry(tenant.clone()).or_default();
        if line.requests.is_empty() {
            self.lines += 1;
            line.turn = (self.shares.join(tenant), self.lines);
            self.turns.insert((line.turn.0, line.turn.1, tenant.clone()));
        }
        line.requests.insert(place, key);
    }

    pub(super) fn remove(&mut self, flow: &Flow, place: Place) {
        let tenant = match flow {
            Flow::Migrated => {
                self.migrated.remove(&place);
                return;
            }
            Flow::Of(tenant) => tenant,
        };
        let Some(line) = self.tenants.get_mut(tenant) else { return };
        line.requests.remove(&place);
        if line.requests.is_empty() {
            self.turns.remove(&(line.turn.0, line.turn.1, tenant.clone()));
            self.tenants.remove(tenant);
            self.shares.leave(tenant);
        }
    }

    /// Who is next of those that fit.
    pub(super) fn next(&self, fits: impl Fn(&ReservationKey) -> bool) -> Option<Next> {
        let migrated =
            || self.migrated.values().find(|key| fits(key)).map(|key| Next { key: *key, passed: Vec::new() });
        let new = || {
            let mut passed = Vec::new();
            for (_, _, tenant) in &self.turns {
                let mut line = self.tenants.get(tenant).into_iter().flat_map(|line| line.requests.values());
                if let Some(key) = line.find(|key| fits(key)) {
                    return Some(Next { key: *key, passed });
                }
                passed.push(tenant.clone());
            }
            None
        };
        if self.in_a_row < MIGRATED_IN_A_ROW { migrated().or_else(new) } else { new().or_else(migrated) }
    }

    /// The one that [`Self::next`] named has been given a worker, and so many tokens of work.
    pub(super) fn serve(&mut self, next: &Next, flow: &Flow, given: Tokens) {
        let tenant = match flow {
            Flow::Migrated => {
                self.in_a_row += 1;
                return;
            }
            Flow::Of(tenant) => tenant,
        };
        self.in_a_row = 0;
        let tag = self.shares.serve(tenant, given);
        self.turn(tenant, tag);
        for passed in &next.passed {
            let tag = self.shares.pass(passed);
            self.turn(passed, tag);
        }
    }

    /// How many leave before a request of this place, about: those before it in its line, and as many of every other tenant.
    pub(super) fn before(&self, flow: &Flow, place: Place) -> usize {
        let first = self.migrated.range(..place).count();
        let tenant = match flow {
            Flow::Migrated => return first,
            Flow::Of(tenant) => tenant,
        };
        let own = self.tenants.get(tenant).map_or(0, |line| line.requests.range(..place).count());
        let others = self.tenants.iter().filter(|(other, _)| *other != tenant);
        own + self.migrated.len() + others.map(|(_, line)| line.requests.len().min(own + 1)).sum::<usize>()
    }

    fn turn(&mut self, tenant: &Tenant, tag: u64) {
        let Some(line) = self.tenants.get_mut(tenant) else { return };
        self.turns.remove(&(line.turn.0, line.turn.1, tenant.clone()));
        line.turn.0 = tag;
        self.turns.insert((tag, line.turn.1, tenant.clone()));
    }
}
