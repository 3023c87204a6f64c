//! Blocks that routed requests will have stored soon, so that requests with one prompt which arrive together go together.
//!
//! Outside count and digest. An entry lasts for a fixed time or until it is withdrawn; beyond the bound the oldest go first.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::Matches;
use super::keyed_hash::KeyedHash;
use crate::domain::units::{Blocks, SequenceHash, Time};

/// Promised blocks per rank.
pub struct Predicted {
    blocks: HashMap<SequenceHash, Vec<Promise>, KeyedHash>,
    /// By expiry, for all last equally long. May name promises that are gone.
    order: VecDeque<(Time, SequenceHash, WorkerRank)>,
    lifetime: Duration,
    max_entries: usize,
}

#[derive(Clone, Copy)]
struct Promise {
    rank: WorkerRank,
    until: Time,
}

impl Predicted {
    /// At most `max_entries` promises (0 switches prediction off), each for `lifetime`; `key` is random.
    pub fn new(max_entries: usize, lifetime: Duration, key: u64) -> Self {
        Self {
            blocks: HashMap::with_hasher(KeyedHash::new(key)),
            order: VecDeque::new(),
            lifetime,
            max_entries,
        }
    }

    /// `rank` will have `prompt`. Of a prompt longer than the whole bound the start is kept.
    pub fn promise(&mut self, rank: WorkerRank, prompt: &[SequenceHash], now: Time) {
        self.expire(now);
        let until = now.after(self.lifetime);
        for hash in prompt.iter().take(self.max_entries) {
            let promises = self.blocks.entry(*hash).or_default();
            match promises.iter_mut().find(|promise| promise.rank == rank) {
                Some(promise) if promise.until == until => continue,
                Some(promise) => promise.until = until,
                None => promises.push(Promise { rank, until }),
            }
            self.order.push_back((until, *hash, rank));
        }
        while self.order.len() > self.max_entries {
            self.drop_oldest();
        }
    }

    /// `rank` will not have `prompt`: the request was refused or given up.
    pub fn withdraw(&mut self, rank: WorkerRank, prompt: &[SequenceHash]) {
        for hash in prompt {
            self.take_out(*hash, |promise| promise.rank == rank);
        }
    }

    /// Drops everything of a rank.
    pub fn drop_rank(&mut self, rank: WorkerRank) {
        self.blocks.retain(|_, promises| {
            promises.retain(|promise| promise.rank != rank);
            !promises.is_empty()
        });
        self.order.retain(|(_, _, promised)| *promised != rank);
    }

    /// Drops what has expired.
    pub fn expire(&mut self, now: Time) {
        while self.order.front().is_some_and(|(until, _, _)| *until <= now) {
            self.drop_oldest();
        }
    }

    /// Longest prefix of `prompt` promised per rank.
    pub fn find(&self, prompt: &[SequenceHash], now: Time) -> Matches {
        let promised = |hash: &SequenceHash| {
            let promises = self.blocks.get(hash).map_or(&[][..], Vec::as_slice);
            promises.iter().filter(move |promise| promise.until > now).map(|promise| promise.rank)
        };
        let Some(first) = prompt.first() else { return Matches::default() };
        let mut alive: Vec<_> = promised(first).collect();
        let mut ended = Vec::new();
        for (depth, hash) in prompt.iter().enumerate().skip(1) {
            if alive.is_empty() {
                break;
            }
            alive.retain(|rank| {
                let holds = promised(hash).any(|holder| holder == *rank);
                if !holds {
                    ended.push((*rank, Blocks(depth as u32)));
                }
                holds
            });
        }
        ended.extend(alive.into_iter().map(|rank| (rank, Blocks(prompt.len() as u32))));
        Matches::new(ended)
    }

    /// Promises, those replaced or withdrawn but not yet expired included: what the bound limits.
    pub fn entries(&self) -> usize {
        self.order.len()
    }

    fn drop_oldest(&mut self) {
        let Some((until, hash, rank)) = self.order.pop_front() else { return };
        self.take_out(hash, |promise| promise.rank == rank && promise.until == until);
    }

    fn take_out(&mut self, hash: SequenceHash, which: impl Fn(&Promise) -> bool) {
        let Some(promises) = self.blocks.get_mut(&hash) else { return };
        promises.retain(|promise| !which(promise));
        if promises.is_empty() {
            self.blocks.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;
    use proptest::prelude::*;

    const LIFETIME: Duration = Duration::from_secs(30);

    fn rank(n: u64) -> WorkerRank {
        WorkerRank::first(InstanceId(n))
    }

    fn hashes(range: std::ops::Range<u64>) -> Vec<SequenceHash> {
        range.map(SequenceHash).collect()
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    #[test]
    fn a_promise_lasts_its_time_and_is_renewed() {
        let mut predicted = Predicted::new(100, LIFETIME, 3);
        predicted.promise(rank(1), &hashes(0..4), at(0));
        predicted.promise(rank(2), &hashes(0..2), at(10));
        assert_eq!(predicted.find(&hashes(0..6), at(29)).of(rank(1)), Blocks(4));
        assert_eq!(predicted.find(&hashes(0..6), at(30)).of(rank(1)), Blocks(0));
        assert_eq!(predicted.find(&hashes(0..6), at(30)).of(rank(2)), Blocks(2));
        predicted.promise(rank(2), &hashes(0..2), at(20));
        predicted.expire(at(45));
        assert_eq!(predicted.find(&hashes(0..2), at(45)).of(rank(2)), Blocks(2));
        predicted.expire(at(50));
        assert_eq!((predicted.entries(), predicted.blocks.len()), (0, 0));
    }

    #[test]
    fn withdrawn_and_dropped_promises_are_gone() {
        let mut predicted = Predicted::new(100, LIFETIME, 3);
        predicted.promise(rank(1), &hashes(0..4), at(0));
        predicted.promise(rank(2), &hashes(0..4), at(0));
        predicted.withdraw(rank(1), &hashes(0..4));
        assert_eq!(predicted.find(&hashes(0..4), at(1)), Matches::new(vec![(rank(2), Blocks(4))]));
        predicted.drop_rank(rank(2));
        assert_eq!(predicted.find(&hashes(0..4), at(1)), Matches::default());
        assert!(predicted.blocks.is_empty());
    }

    proptest! {
        #[test]
        fn it_stays_bounded(promises in prop::collection::vec((0u64..4, 0u64..20, 1u64..20, 0u64..10), 0..40), bound in 0usize..30) {
            let mut predicted = Predicted::new(bound, LIFETIME, 3);
            let mut now = 0;
            for (r, from, len, wait) in promises {
                now += wait;
                predicted.promise(rank(r), &hashes(from..from + len), at(now));
                let held: usize = predicted.blocks.values().map(Vec::len).sum();
                prop_assert!(held <= predicted.entries() && predicted.entries() <= bound);
            }
        }
    }
}
