//! What workers without KV events are believed to have: the prompts of the requests that they took, by this router's own account.
//!
//! A prompt is entered when its worker has admitted the request (until then it is [`super::predicted`]) and goes when the worker's cache would
//! have let it go: least recently used first once its prompts are larger than its pool, or after a fixed time. Blocks that prompts share
//! count once, with the latest of them. Outside count and digest; with the worker everything of it goes.
//!
//! It is an estimate both ways: the engine may have evicted earlier, and it has answers that are not known here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::Matches;
use super::prompts::{Given, Prompts};
use crate::domain::units::{Blocks, SequenceHash, Time};

/// Prompts of ranks that do not say what they have.
pub struct Approximate {
    prompts: Prompts,
    ranks: HashMap<WorkerRank, Rank>,
    /// Hashes held for all ranks.
    held: usize,
    max_held: usize,
    lifetime: Option<Duration>,
    tickets: u64,
}

#[derive(Default)]
struct Rank {
    /// By last use, for a prompt that is used again is entered anew. May name tickets that are gone.
    order: VecDeque<u64>,
    prompts: HashMap<u64, Held>,
    /// Sum of what its prompts count for.
    counted: u64,
    held: usize,
}

struct Held {
    prompt: Arc<[SequenceHash]>,
    since: Time,
    /// First blocks that a later prompt has too, and that count there.
    passed_on: usize,
}

impl Held {
    fn counts(&self) -> u64 {
        (self.prompt.len() - self.passed_on) as u64
    }
}

impl Approximate {
    /// Nothing yet; at most `max_held` hashes, and each prompt for `lifetime` unless that is zero. `key` is random.
    pub fn new(max_held: usize, lifetime: Duration, key: u64) -> Self {
        Self {
            prompts: Prompts::new(key),
            ranks: HashMap::new(),
            held: 0,
            max_held,
            lifetime: (!lifetime.is_zero()).then_some(lifetime),
            tickets: 0,
        }
    }

    /// `rank`, whose pool has `capacity` blocks, has taken a request with this prompt.
    pub fn store(&mut self, rank: WorkerRank, capacity: Blocks, prompt: &Arc<[SequenceHash]>, now: Time) {
        if prompt.is_empty() || prompt.len() > self.max_held {
            return;
        }
        let sharing: Vec<_> = self.prompts.sharing(rank, prompt).collect();
        for (ticket, shared) in sharing {
            self.pass_on(rank, ticket, shared);
        }
        self.tickets += 1;
        let ticket = self.tickets;
        self.prompts.add(&Given { rank, ticket, prompt: prompt.clone() });
        let of_rank = self.ranks.entry(rank).or_default();
        of_rank.order.push_back(ticket);
        of_rank.prompts.insert(ticket, Held { prompt: prompt.clone(), since: now, passed_on: 0 });
        of_rank.counted += prompt.len() as u64;
        of_rank.held += prompt.len();
        self.held += prompt.len();
        while self.ranks.get(&rank).is_some_and(|of_rank| of_rank.counted > u64::from(capacity.0)) {
            self.drop_oldest(rank);
        }
        while self.held > self.max_held {
            let largest = self.ranks.iter().max_by_key(|(rank, of_rank)| (of_rank.held, **rank));
            let Some(largest) = largest.map(|(rank, _)| *rank) else { break };
            self.drop_oldest(largest);
        }
    }

    /// Drops everything of a rank.
    pub fn drop_rank(&mut self, rank: WorkerRank) {
        if let Some(of_rank) = self.ranks.remove(&rank) {
            self.held -= of_rank.held;
            self.prompts.drop_rank(rank);
        }
    }

    /// Drops what has had its time.
    pub fn expire(&mut self, now: Time) {
        let Some(lifetime) = self.lifetime else { return };
        let ranks: Vec<_> = self.ranks.keys().copied().collect();
        for rank in ranks {
            while self.oldest(rank).is_some_and(|since| since.after(lifetime) <= now) {
                self.drop_oldest(rank);
            }
        }
    }

    /// Longest prefix of `prompt` per rank.
    pub fn find(&self, prompt: &[SequenceHash]) -> Matches {
        self.prompts.find(prompt)
    }

    /// Hashes held: what the bound limits.
    pub fn blocks(&self) -> usize {
        self.held
    }

    /// Since when the rank's oldest prompt is there; tickets without a prompt before it are taken out.
    fn oldest(&mut self, rank: WorkerRank) -> Option<Time> {
        let of_rank = self.ranks.get_mut(&rank)?;
        while let Some(ticket) = of_rank.order.front() {
            if let Some(held) = of_rank.prompts.get(ticket) {
                return Some(held.since);
            }
            of_rank.order.pop_front();
        }
        None
    }

    /// The first `shared` blocks of a prompt count with a later one from now on.
    fn pass_on(&mut self, rank: WorkerRank, ticket: u64, shared: usize) {
        let Some(of_rank) = self.ranks.get_mut(&rank) else { return };
        let Some(held) = of_rank.prompts.get_mut(&ticket) else { return };
        let more = shared.saturating_sub(held.passed_on);
        held.passed_on += more;
        of_rank.counted -= more as u64;
        if held.counts() == 0 {
            self.remove(rank, ticket);
        }
    }

    fn drop_oldest(&mut self, rank: WorkerRank) {
        let ticket = self.ranks.get_mut(&rank).and_then(|of_rank| of_rank.order.pop_front());
        match ticket {
            Some(ticket) => self.remove(rank, ticket),
            None => self.drop_rank(rank),
        }
    }

    fn remove(&mut self, rank: WorkerRank, ticket: u64) {
        let Some(of_rank) = self.ranks.get_mut(&rank) else { return };
        let Some(held) = of_rank.prompts.remove(&ticket) else { return };
        of_rank.counted -= held.counts();
        of_rank.held -= held.prompt.len();
        self.held -= held.prompt.len();
        self.prompts.remove(rank, ticket, &held.prompt);
        // What was used again and again leaves tickets behind.
        if of_rank.order.len() > 2 * of_rank.prompts.len() + 16 {
            let prompts = &of_rank.prompts;
            of_rank.order.retain(|ticket| prompts.contains_key(ticket));
        }
        if of_rank.prompts.is_empty() {
            self.ranks.remove(&rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn rank(n: u64) -> WorkerRank {
        WorkerRank::first(InstanceId(n))
    }

    /// A prompt that is chain 0 up to `shared`, and its own from there on.
    fn prompt(own: u64, shared: u64, len: u64) -> Arc<[SequenceHash]> {
        (0..len)
            .map(|i| SequenceHash(if i < shared { i } else { own * 1_000_000_000 + shared * 1_000_000 + i }))
            .collect()
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn of(approximate: &Approximate, prompt: &[SequenceHash]) -> u32 {
        approximate.find(prompt).of(rank(1)).0
    }

    #[test]
    fn the_least_recently_used_go_when_the_pool_is_full() {
        let mut approximate = Approximate::new(1_000, Duration::ZERO, 7);
        let (a, b, c) = (prompt(1, 0, 40), prompt(2, 0, 40), prompt(3, 0, 40));
        approximate.store(rank(1), Blocks(100), &a, at(0));
        approximate.store(rank(1), Blocks(100), &b, at(1));
        // Used again: it is the latest now.
        approximate.store(rank(1), Blocks(100), &prompt(1, 0, 40), at(2));
        assert_eq!(approximate.blocks(), 80);
        approximate.store(rank(1), Blocks(100), &c, at(3));
        assert_eq!((of(&approximate, &a), of(&approximate, &b), of(&approximate, &c)), (40, 0, 40));
        approximate.drop_rank(rank(1));
        assert!(approximate.blocks() == 0 && approximate.prompts.is_empty() && approximate.ranks.is_empty());
    }

    #[test]
    fn shared_blocks_count_once_and_with_the_latest() {
        let mut approximate = Approximate::new(1_000, Duration::ZERO, 7);
        // 60 common blocks and 10 of each: 100 in all.
        for own in 1..=4 {
            approximate.store(rank(1), Blocks(100), &prompt(own, 60, 70), at(own));
        }
        assert_eq!((1..=4).map(|own| of(&approximate, &prompt(own, 60, 70))).collect::<Vec<_>>(), [70; 4]);
        assert_eq!(approximate.ranks[&rank(1)].counted, 100);
        // A fifth makes the first one's own blocks go, and not what all have in common.
        approximate.store(rank(1), Blocks(100), &prompt(5, 60, 70), at(5));
        assert_eq!(of(&approximate, &prompt(1, 60, 70)), 60);
        assert_eq!(of(&approximate, &prompt(5, 60, 70)), 70);
    }

    #[test]
    fn a_lifetime_ends_them() {
        let mut approximate = Approximate::new(1_000, Duration::from_secs(120), 7);
        approximate.store(rank(1), Blocks(100), &prompt(1, 0, 8), at(0));
        approximate.store(rank(1), Blocks(100), &prompt(2, 0, 8), at(60));
        approximate.expire(at(120));
        assert_eq!((of(&approximate, &prompt(1, 0, 8)), of(&approximate, &prompt(2, 0, 8))), (0, 8));
        approximate.expire(at(180));
        assert!(approximate.prompts.is_empty() && approximate.ranks.is_empty());
    }

    proptest! {
        #[test]
        fn it_counts_at_least_what_it_believes_and_stays_within_pool_and_bound(
            steps in prop::collection::vec((0u64..3, 1u64..8, 0u64..30, 1u64..30), 1..60), capacity in 1u32..80, bound in 1usize..120,
        ) {
            let mut approximate = Approximate::new(bound, Duration::ZERO, 7);
            for ((r, own, shared, len), now) in steps.into_iter().zip(0..) {
                approximate.store(rank(r), Blocks(capacity), &prompt(own, shared, len), at(now));
                prop_assert!(approximate.held <= bound);
                let mut held = 0;
                for of_rank in approximate.ranks.values() {
                    let distinct: BTreeSet<_> = of_rank.prompts.values().flat_map(|held| held.prompt.iter()).collect();
                    let counted: u64 = of_rank.prompts.values().map(Held::counts).sum();
                    prop_assert_eq!(counted, of_rank.counted);
                    prop_assert!(of_rank.counted <= u64::from(capacity));
                    prop_assert!(distinct.len() as u64 <= of_rank.counted, "{} distinct, {} counted", distinct.len(), of_rank.counted);
                    prop_assert!(of_rank.order.len() <= 2 * of_rank.prompts.len() + 16);
                    held += of_rank.held;
                }
                prop_assert_eq!(held, approximate.held);
            }
        }
    }
}
