//! Requests that were present when workers died, so that none of them eats the fleet.
//!
//! A fingerprint that was present at [`DEATHS`] deaths is refused until [`REFUSED_FOR`] after the last of them. The list is bounded: the
//! fingerprint whose last death is the oldest is forgotten first.

use std::collections::HashMap;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::params::Params;

/// Deaths that make a request suspicious enough to refuse.
pub const DEATHS: u32 = 3;
/// How long it is refused.
pub const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Equal requests have equal fingerprints: hash of the prompt's tokens and of what shapes the computation, the seed excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// The fingerprint of `prompt` continued as `params` say.
    pub fn of(prompt: &[u32], params: &Params) -> Self {
        let mut hash = Xxh3::new();
        for token in prompt {
            hash.update(&token.to_le_bytes());
        }
        let mut unseeded = params.clone();
        unseeded.sampling.seed = None;
        hash.update(format!("{unseeded:?}").as_bytes());
        Self(hash.digest())
    }
}

/// Deaths by fingerprint. Times are since any fixed origin, and do not go back.
#[derive(Debug)]
pub struct Deaths {
    seen: HashMap<Fingerprint, (u32, Duration)>,
    capacity: usize,
}

impl Deaths {
    /// Remembers at most `capacity` fingerprints.
    pub fn new(capacity: usize) -> Self {
        Self { seen: HashMap::new(), capacity: capacity.max(1) }
    }

    /// A worker died with this request on it.
    pub fn record(&mut self, fingerprint: Fingerprint, now: Duration) {
        self.seen.retain(|_, (_, last)| now.saturating_sub(*last) < REFUSED_FOR);
        if !self.seen.contains_key(&fingerprint) && self.seen.len() >= self.capacity {
            let oldest = self.seen.iter().min_by_key(|(_, (_, last))| *last).map(|(it, _)| *it);
            oldest.and_then(|it| self.seen.remove(&it));
        }
        let entry = self.seen.entry(fingerprint).or_insert((0, now));
        *entry = (entry.0 + 1, now);
    }

    /// How much longer the request is refused; `None` when it is not.
    pub fn refused(&self, fingerprint: Fingerprint, now: Duration) -> Option<Duration> {
        let (deaths, last) = self.seen.get(&fingerprint)?;
        let left = REFUSED_FOR.checked_sub(now.saturating_sub(*last)).filter(|left| !left.is_zero())?;
        (*deaths >= DEATHS).then_some(left)
    }

    /// Fingerprints remembered.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// True when none is remembered.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::domain::params::Draft;

    #[test]
    fn refused_from_the_third_death_for_ten_minutes() {
        let (mut deaths, it) = (Deaths::new(4), Fingerprint(7));
        let at = Duration::from_secs;
        deaths.record(it, at(0));
        deaths.record(it, at(1));
        assert_eq!(deaths.refused(it, at(1)), None);
        deaths.record(it, at(2));
        assert_eq!(deaths.refused(it, at(2)), Some(REFUSED_FOR));
        assert_eq!(deaths.refused(it, at(601)), Some(at(1)));
        assert_eq!(deaths.refused(it, at(602)), None);
        assert_eq!(deaths.refused(Fingerprint(8), at(2)), None);
    }

    #[test]
    fn the_list_is_bounded() {
        let mut deaths = Deaths::new(4);
        for i in 0..100 {
            deaths.record(Fingerprint(i), Duration::from_millis(i));
        }
        assert_eq!(deaths.len(), 4);
    }

    #[test]
    fn the_seed_makes_no_other_request() {
        let seeded = |seed| Draft { seed: Some(seed), ..Draft::default() }.check().unwrap();
        assert_eq!(Fingerprint::of(&[1, 2], &seeded(1)), Fingerprint::of(&[1, 2], &seeded(2)));
        assert_ne!(Fingerprint::of(&[1, 2], &seeded(1)), Fingerprint::of(&[2, 1], &seeded(1)));
    }
}
