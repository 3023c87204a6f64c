//! Tells a few deaths from a broken network: when too much of a component would be lost at once, it is doubted instead.
//!
//! would(t) = losses and doubts within one window before t + broken leases not judged yet. It is a mass loss when
//! would >= `at_least` and would > `share` * (instances now + losses within the window).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::instance::{Component, Instance, InstanceId, Namespace};
use super::time::Moment;

/// What is judged together: a component of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Who sees it.
    pub namespace: Namespace,
    /// What it is.
    pub component: Component,
}

impl Group {
    /// The group of an instance.
    pub fn of(instance: &Instance) -> Self {
        Self { namespace: instance.namespace.clone(), component: instance.component }
    }
}

/// When losses are a mass loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MassLoss {
    /// Losses this far apart count together: one lease TTL.
    pub window: Duration,
    /// Part of a group, 0 to 1, that may be lost within the window.
    pub share: f64,
    /// Fewer losses than this are never a mass loss.
    pub at_least: usize,
}

/// Remembers the losses of one window, per group. Bounded: what it admits as lost is a share of the instances, what it doubts is one of
/// them.
#[derive(Debug)]
pub struct Guard {
    rule: MassLoss,
    recent: BTreeMap<Group, VecDeque<(Moment, Outcome)>>,
    doubted: BTreeMap<InstanceId, Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Lost,
    Doubted,
}

impl Guard {
    /// A guard that has seen nothing.
    pub fn new(rule: MassLoss) -> Self {
        Self { rule, recent: BTreeMap::new(), doubted: BTreeMap::new() }
    }

    /// Whether judging `broken` leases of a group with `present` instances as lost would be a mass loss.
    pub fn forbids(&mut self, group: &Group, broken: usize, present: usize, now: Moment) -> bool {
        self.forget(now);
        let recent = self.recent.get(group);
        let count = |outcome| recent.map_or(0, |it| it.iter().filter(|(_, seen)| *seen == outcome).count());
        let (lost, doubted) = (count(Outcome::Lost), count(Outcome::Doubted));
        let would = broken + lost + doubted;
        would >= self.rule.at_least && would as f64 > self.rule.share * (present + lost) as f64
    }

    /// An instance was judged lost.
    pub fn lost(&mut self, group: Group, now: Moment) {
        self.recent.entry(group).or_default().push_back((now, Outcome::Lost));
    }

    /// An instance was kept because of a mass loss; the alarm of its group rings until [`Guard::resolved`].
    pub fn doubted(&mut self, group: Group, id: InstanceId, now: Moment) {
        self.recent.entry(group.clone()).or_default().push_back((now, Outcome::Doubted));
        self.doubted.insert(id, group);
    }

    /// An instance is back or gone for certain.
    pub fn resolved(&mut self, id: InstanceId) {
        self.doubted.remove(&id);
    }

    /// Groups with instances kept because of a mass loss.
    pub fn alarms(&self) -> BTreeSet<&Group> {
        self.doubted.values().collect()
    }

    fn forget(&mut self, now: Moment) {
        let window = self.rule.window;
        self.recent.retain(|_, seen| {
            while seen.front().is_some_and(|(at, _)| now.since(*at) >= window) {
                seen.pop_front();
            }
            !seen.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: MassLoss = MassLoss { window: Duration::from_secs(30), share: 0.2, at_least: 3 };

    fn workers() -> Group {
        Group { namespace: Namespace::default(), component: Component::Worker }
    }

    #[test]
    fn two_of_two_may_die_and_three_of_three_may_not() {
        let mut guard = Guard::new(RULE);
        assert!(!guard.forbids(&workers(), 2, 2, Moment::default()));
        assert!(guard.forbids(&workers(), 3, 3, Moment::default()));
    }

    #[test]
    fn a_fifth_may_die_and_no_more_within_one_window() {
        let mut guard = Guard::new(RULE);
        assert!(!guard.forbids(&workers(), 4, 20, Moment::default()));
        for _ in 0..4 {
            guard.lost(workers(), Moment::default());
        }
        let soon = Moment(Duration::from_secs(29));
        assert!(guard.forbids(&workers(), 1, 16, soon));
        let later = Moment(Duration::from_secs(30));
        assert!(!guard.forbids(&workers(), 1, 16, later));
    }

    #[test]
    fn the_alarm_rings_until_every_doubt_is_resolved() {
        let mut guard = Guard::new(RULE);
        guard.doubted(workers(), InstanceId(1), Moment::default());
        guard.doubted(workers(), InstanceId(2), Moment::default());
        guard.resolved(InstanceId(1));
        assert_eq!(guard.alarms(), BTreeSet::from([&workers()]));
        guard.resolved(InstanceId(2));
        assert!(guard.alarms().is_empty());
    }
}
