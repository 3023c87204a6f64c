//! Whole prompts that ranks were given, found by what they begin with.
//!
//! Sequence hashes are chained: two prompts that agree in one block agree in all before it. So a prompt is entered at few of its blocks,
//! those at depths 1, 2, 4, 8, ... and the last, and how far it goes together with another is found from there by bisection. A prompt of 6,250 blocks
//! costs 14 entries instead of 6,250.
//!
//! Of one rank's prompts with the same block at such a depth the latest [`PER_RANK`] are entered, so an answer may be too short where many prompts
//! part between two of these depths; at least half of what is shared is found, unless later ones were taken out before older ones. It is never too long.

use std::collections::HashMap;
use std::sync::Arc;

use armature_contracts::ids::WorkerRank;

use super::Matches;
use super::keyed_hash::KeyedHash;
use crate::domain::units::{Blocks, SequenceHash};

/// Prompts of one rank entered at one block.
const PER_RANK: usize = 4;

/// A prompt that a rank was given.
#[derive(Debug, Clone)]
pub struct Given {
    /// The rank.
    pub rank: WorkerRank,
    /// Tells it from others, and rises.
    pub ticket: u64,
    /// All of its full blocks.
    pub prompt: Arc<[SequenceHash]>,
}

/// The prompts, by some of their blocks.
#[derive(Debug)]
pub struct Prompts {
    /// By rank, then ticket.
    entries: HashMap<SequenceHash, Vec<Given>, KeyedHash>,
}

impl Prompts {
    /// None; `key` is random.
    pub fn new(key: u64) -> Self {
        Self { entries: HashMap::with_hasher(KeyedHash::new(key)) }
    }

    /// Adds a prompt whose ticket is higher than all before.
    pub fn add(&mut self, given: &Given) {
        for depth in depths(given.prompt.len()) {
            let entered =
                self.entries.entry(given.prompt[depth - 1]).or_insert_with(|| Vec::with_capacity(1));
            let from = entered.partition_point(|other| other.rank < given.rank);
            let to = from + entered[from..].partition_point(|other| other.rank == given.rank);
            if to - from < PER_RANK {
                entered.insert(to, given.clone());
            } else {
                // The oldest of the rank makes room.
                entered[from..to].rotate_left(1);
                entered[to - 1] = given.clone();
            }
        }
    }

    /// Takes a prompt out.
    pub fn remove(&mut self, rank: WorkerRank, ticket: u64, prompt: &[SequenceHash]) {
        for depth in depths(prompt.len()) {
            let Some(entered) = self.entries.get_mut(&prompt[depth - 1]) else { continue };
            let at = entered.binary_search_by_key(&(rank, ticket), |given| (given.rank, given.ticket));
            if let Ok(at) = at {
                entered.remove(at);
            }
            if entered.is_empty() {
                self.entries.remove(&prompt[depth - 1]);
            }
        }
    }

    /// Takes out everything of a rank.
    pub fn drop_rank(&mut self, rank: WorkerRank) {
        self.entries.retain(|_, entered| {
            entered.retain(|given| given.rank != rank);
            !entered.is_empty()
        });
    }

    /// Per rank the longest prefix of `prompt` that one of its prompts begins with.
    pub fn find(&self, prompt: &[SequenceHash]) -> Matches {
        let mut found: Vec<(WorkerRank, Blocks)> = Vec::new();
        if self.entries.is_empty() {
            return Matches::default();
        }
        // From the deepest on: whoever is found there is not looked for again.
        for depth in depths(prompt.len()).rev() {
            let Some(entered) = self.entries.get(&prompt[depth - 1]) else { continue };
            for of_rank in entered.chunk_by(|a, b| a.rank == b.rank) {
                let rank = of_rank[0].rank;
                if let Err(at) = found.binary_search_by_key(&rank, |(rank, _)| *rank) {
                    let longest = of_rank.iter().map(|given| shared(&given.prompt, prompt, depth)).max();
                    found.insert(at, (rank, Blocks(longest.unwrap_or(0) as u32)));
                }
            }
        }
        Matches::new(found)
    }

    /// A rank's prompts that begin as `prompt` does, with the blocks they share; some more than once.
    pub fn sharing(
        &self,
        rank: WorkerRank,
        prompt: &[SequenceHash],
    ) -> impl Iterator<Item = (u64, usize)> + '_ {
        let mut sharing = Vec::new();
        for depth in depths(prompt.len()) {
            let Some(entered) = self.entries.get(&prompt[depth - 1]) else { continue };
            let from = entered.partition_point(|given| given.rank < rank);
            let of_rank = entered[from..].iter().take_while(|given| given.rank == rank);
            sharing.extend(of_rank.map(|given| (given.ticket, shared(&given.prompt, prompt, depth))));
        }
        sharing.into_iter()
    }

    /// The ticket of the latest prompt of a rank that is this very list.
    pub fn ticket(&self, rank: WorkerRank, prompt: &Arc<[SequenceHash]>) -> Option<u64> {
        let entered = self.entries.get(prompt.last()?)?;
        let same = |given: &&Given| given.rank == rank && Arc::ptr_eq(&given.prompt, prompt);
        entered.iter().rfind(same).map(|given| given.ticket)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Depths at which a prompt of `blocks` blocks is entered, rising: powers of two, and the last.
fn depths(blocks: usize) -> impl DoubleEndedIterator<Item = usize> {
    let powers = usize::BITS - blocks.leading_zeros();
    let last = (blocks > 0 && !blocks.is_power_of_two()).then_some(blocks);
    (0..powers).map(|power| 1usize << power).chain(last)
}

/// Blocks that two prompts share, which agree in block `known - 1`.
fn shared(a: &[SequenceHash], b: &[SequenceHash], known: usize) -> usize {
    let (mut alike, mut apart) = (known, a.len().min(b.len()) + 1);
    while alike + 1 < apart {
        let middle = alike + (apart - alike) / 2;
        if a[middle - 1] == b[middle - 1] { alike = middle } else { apart = middle }
    }
    alike
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;
    use proptest::prelude::*;

    fn rank(n: u64) -> WorkerRank {
        WorkerRank::first(InstanceId(n))
    }

    /// A prompt that is chain 0 up to `shared`, and its own from there on.
    fn prompt(own: u64, shared: u64, len: u64) -> Arc<[SequenceHash]> {
        (0..len)
            .map(|i| SequenceHash(if i < shared { i } else { own * 1_000_000_000 + shared * 1_000_000 + i }))
            .collect()
    }

    #[test]
    fn a_prompt_is_entered_at_few_depths() {
        assert_eq!(depths(0).count(), 0);
        assert_eq!(depths(1).collect::<Vec<_>>(), [1]);
        assert_eq!(depths(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert_eq!(depths(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(depths(6_250).count(), 14);
    }

    proptest! {
        #[test]
        fn what_is_found_is_shared_and_a_lone_prompt_is_found_whole(
            len in 1u64..200, other in 1u64..200, common in 0u64..200,
        ) {
            let mut prompts = Prompts::new(7);
            let given = Given { rank: rank(1), ticket: 1, prompt: prompt(1, common, len) };
            prompts.add(&given);
            let asked = prompt(2, common, other);
            let shared = common.min(len).min(other) as u32;
            prop_assert_eq!(prompts.find(&asked).of(rank(1)), Blocks(shared));
            prompts.remove(given.rank, given.ticket, &given.prompt);
            prop_assert!(prompts.is_empty());
        }

        #[test]
        fn of_many_at_least_half_is_found_and_never_too_much(
            given in prop::collection::vec((0u64..4, 1u64..6, 0u64..80, 1u64..80), 1..40), asked in (1u64..6, 0u64..80, 1u64..80),
        ) {
            let mut prompts = Prompts::new(7);
            let given: Vec<_> = given.into_iter().zip(1..).map(|((r, own, shared, len), ticket)| {
                Given { rank: rank(r), ticket, prompt: prompt(own, shared, len) }
            }).collect();
            given.iter().for_each(|given| prompts.add(given));
            let asked = prompt(asked.0, asked.1, asked.2);
            let found = prompts.find(&asked);
            for r in 0..4 {
                let of_rank = given.iter().filter(|given| given.rank == rank(r));
                let shared = |given: &Given| given.prompt.iter().zip(&asked[..]).take_while(|(a, b)| a == b).count() as u32;
                let longest = of_rank.map(shared).max().unwrap_or(0);
                let found = found.of(rank(r)).0;
                prop_assert!(found <= longest && 2 * found >= longest, "{found} of {longest}");
            }
            given.iter().for_each(|given| prompts.remove(given.rank, given.ticket, &given.prompt));
            prop_assert!(prompts.is_empty());
        }
    }
}
