//! Prompts that routed requests will have stored soon, so that requests with one prompt which arrive together go together.
//!
//! Outside count and digest. A promise lasts for a fixed time or until it is withdrawn; beyond the bound the oldest go first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::Matches;
use super::prompts::{Given, Prompts};
use crate::domain::units::{SequenceHash, Time};

/// Promised prompts per rank.
pub struct Predicted {
    prompts: Prompts,
    /// By expiry, for all last equally long. May hold promises that were withdrawn.
    order: VecDeque<(Time, Given)>,
    blocks: usize,
    tickets: u64,
    lifetime: Duration,
    max_blocks: usize,
}

impl Predicted {
    /// Prompts of at most `max_blocks` blocks together (0 switches prediction off), each for `lifetime`; `key` is random.
    pub fn new(max_blocks: usize, lifetime: Duration, key: u64) -> Self {
        Self {
            prompts: Prompts::new(key),
            order: VecDeque::new(),
            blocks: 0,
            tickets: 0,
            lifetime,
            max_blocks,
        }
    }

    /// `rank` will have `prompt`. One that is longer than the whole bound is not remembered.
    pub fn promise(&mut self, rank: WorkerRank, prompt: &Arc<[SequenceHash]>, now: Time) {
        self.expire(now);
        if prompt.is_empty() || prompt.len() > self.max_blocks {
            return;
        }
        self.tickets += 1;
        let given = Given { rank, ticket: self.tickets, prompt: prompt.clone() };
        self.prompts.add(&given);
        self.blocks += prompt.len();
        self.order.push_back((now.after(self.lifetime), given));
        while self.blocks > self.max_blocks {
            self.drop_oldest();
        }
    }

    /// `rank` will not have `prompt`, the very list that was promised: the request was refused or given up.
    pub fn withdraw(&mut self, rank: WorkerRank, prompt: &Arc<[SequenceHash]>) {
        if let Some(ticket) = self.prompts.ticket(rank, prompt) {
            self.prompts.remove(rank, ticket, prompt);
        }
    }

    /// Drops everything of a rank.
    pub fn drop_rank(&mut self, rank: WorkerRank) {
        self.prompts.drop_rank(rank);
        self.order.retain(|(_, given)| given.rank != rank);
        self.blocks = self.order.iter().map(|(_, given)| given.prompt.len()).sum();
    }

    /// Drops what has expired.
    pub fn expire(&mut self, now: Time) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.drop_oldest();
        }
    }

    /// Longest prefix of `prompt` promised per rank, as of the last [`Self::expire`].
    pub fn find(&self, prompt: &[SequenceHash]) -> Matches {
        self.prompts.find(prompt)
    }

    /// Blocks of promised prompts, those withdrawn but not yet expired included: what the bound limits.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    fn drop_oldest(&mut self) {
        let Some((_, given)) = self.order.pop_front() else { return };
        self.blocks -= given.prompt.len();
        self.prompts.remove(given.rank, given.ticket, &given.prompt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::units::Blocks;
    use armature_contracts::ids::InstanceId;
    use proptest::prelude::*;

    const LIFETIME: Duration = Duration::from_secs(30);

    fn rank(n: u64) -> WorkerRank {
        WorkerRank::first(InstanceId(n))
    }

    fn hashes(range: std::ops::Range<u64>) -> Arc<[SequenceHash]> {
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
        predicted.expire(at(29));
        assert_eq!(predicted.find(&hashes(0..6)).of(rank(1)), Blocks(4));
        predicted.expire(at(30));
        assert_eq!(predicted.find(&hashes(0..6)).of(rank(1)), Blocks(0));
        assert_eq!(predicted.find(&hashes(0..6)).of(rank(2)), Blocks(2));
        predicted.promise(rank(2), &hashes(0..2), at(30));
        predicted.expire(at(45));
        assert_eq!(predicted.find(&hashes(0..2)).of(rank(2)), Blocks(2));
        predicted.expire(at(60));
        assert!(predicted.blocks() == 0 && predicted.prompts.is_empty());
    }

    #[test]
    fn withdrawn_and_dropped_promises_are_gone_and_others_stay() {
        let mut predicted = Predicted::new(100, LIFETIME, 3);
        let (refused, taken) = (hashes(0..4), hashes(0..4));
        predicted.promise(rank(1), &taken, at(0));
        predicted.promise(rank(1), &refused, at(0));
        predicted.promise(rank(2), &refused, at(0));
        predicted.withdraw(rank(1), &refused);
        assert_eq!(predicted.find(&refused).of(rank(1)), Blocks(4), "the other request's");
        predicted.withdraw(rank(1), &taken);
        assert_eq!(predicted.find(&refused), Matches::new(vec![(rank(2), Blocks(4))]));
        predicted.drop_rank(rank(2));
        assert!(predicted.prompts.is_empty());
        assert_eq!(predicted.blocks(), 4 + 4);
        predicted.expire(at(30));
        assert_eq!(predicted.blocks(), 0);
    }

    proptest! {
        #[test]
        fn it_stays_bounded(promises in prop::collection::vec((0u64..4, 0u64..20, 1u64..20, 0u64..10), 0..40), bound in 0usize..30) {
            let mut predicted = Predicted::new(bound, LIFETIME, 3);
            let mut now = 0;
            for (r, from, len, wait) in promises {
                now += wait;
                predicted.promise(rank(r), &hashes(from..from + len), at(now));
                let held: usize = predicted.order.iter().map(|(_, given)| given.prompt.len()).sum();
                prop_assert!(held == predicted.blocks() && held <= bound);
            }
        }
    }
}
