//! One leader per name, fenced by a term.
//!
//! Terms come from one counter for all names, which starts where the shell says (the wall clock), so that they grow over a forgotten name
//! and over a restart with an empty registry alike.

use std::collections::BTreeMap;
use std::time::Duration;

use super::instance::InstanceId;
use super::time::Moment;

/// Grows with every change of leader; everything a leader does carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term(pub u64);

/// Who leads, and since which term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The leader.
    pub leader: InstanceId,
    /// Its term.
    pub term: Term,
}

/// As many names have leaders as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} names have a leader, which is the limit (limits.leaders)")]
pub struct TooManyNames {
    /// The bound.
    pub limit: usize,
}

/// The leaders of all names; bounded by the number of names.
#[derive(Debug)]
pub struct Leaders {
    limit: usize,
    last: Term,
    by_name: BTreeMap<String, (Leadership, Moment)>,
}

impl Leaders {
    /// At most `limit` names; terms are greater than `base`.
    pub fn new(limit: usize, base: u64) -> Self {
        Self { limit, last: Term(base), by_name: BTreeMap::new() }
    }

    /// Asks for or renews leadership until `now + ttl`; answers who leads.
    pub fn campaign(
        &mut self,
        name: &str,
        candidate: InstanceId,
        ttl: Duration,
        now: Moment,
    ) -> Result<Leadership, TooManyNames> {
        self.by_name.retain(|_, (_, until)| now < *until);
        if let Some((leadership, until)) = self.by_name.get_mut(name) {
            if leadership.leader == candidate {
                *until = now + ttl;
            }
            return Ok(*leadership);
        }
        if self.by_name.len() >= self.limit {
            return Err(TooManyNames { limit: self.limit });
        }
        self.last = Term(self.last.0 + 1);
        let leadership = Leadership { leader: candidate, term: self.last };
        self.by_name.insert(name.to_owned(), (leadership, now + ttl));
        Ok(leadership)
    }

    /// Gives leadership up, if it is still `candidate`'s in `term`.
    pub fn resign(&mut self, name: &str, candidate: InstanceId, term: Term) {
        let held = Leadership { leader: candidate, term };
        if self.by_name.get(name).is_some_and(|(leadership, _)| *leadership == held) {
            self.by_name.remove(name);
        }
    }

    /// How many names have a leader.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether no name has a leader.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No two leaders of a name have the same term, terms never fall, and nobody loses leadership before its time is up.
        #[test]
        fn terms_fence(steps in prop::collection::vec((1u64..4, 0u64..5, any::<bool>()), 1..100)) {
            let ttl = Duration::from_secs(3);
            let mut leaders = Leaders::new(4, 100);
            let mut now = Moment::default();
            let mut held: Option<(Leadership, Moment)> = None;
            for (candidate, pause, resigns) in steps {
                now = now + Duration::from_secs(pause);
                let candidate = InstanceId(candidate);
                let answer = leaders.campaign("scale", candidate, ttl, now).unwrap();
                prop_assert!(answer.term > Term(100));
                if let Some((before, until)) = held {
                    prop_assert!(answer.term >= before.term);
                    prop_assert_eq!(answer.term == before.term, now < until);
                    prop_assert!(now >= until || answer.leader == before.leader);
                }
                if answer.leader == candidate {
                    held = Some((answer, now + ttl));
                    if resigns {
                        leaders.resign("scale", candidate, Term(answer.term.0 - 1));
                        prop_assert_eq!(leaders.len(), 1, "an older term resigns nothing");
                        leaders.resign("scale", candidate, answer.term);
                        held = Some((answer, now));
                    }
                }
            }
        }
    }

    #[test]
    fn names_are_bounded_and_expired_ones_make_room() {
        let mut leaders = Leaders::new(1, 0);
        let second = Duration::from_secs(1);
        leaders.campaign("a", InstanceId(1), second, Moment::default()).unwrap();
        assert_eq!(
            leaders.campaign("b", InstanceId(1), second, Moment::default()),
            Err(TooManyNames { limit: 1 })
        );
        let later = Moment(second);
        assert_eq!(leaders.campaign("b", InstanceId(1), second, later).unwrap().term, Term(2));
    }
}
