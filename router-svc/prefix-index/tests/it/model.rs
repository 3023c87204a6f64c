//! Arbitrary steps leave the index as they leave plain sets.

use std::collections::{BTreeMap, BTreeSet};

use armature_prefix_index::{Held, Index, Parent, Worker};
use proptest::prelude::*;

use crate::rig::{chained, digest, forked, found, index};

const WORKERS: usize = 5;
const CHAINS: u64 = 4;
const LEN: u64 = 40;

#[derive(Debug, Clone)]
enum Step {
    Store { worker: usize, chain: u64, from: usize, len: usize, tier: u8 },
    StoreSet { worker: usize, chain: u64, tier: u8 },
    Remove { worker: usize, chain: u64, from: usize, len: usize, tier: u8 },
    Replace { worker: usize },
    Hit { chain: u64, len: usize },
    Tidy,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let run = || (0..WORKERS, 0..CHAINS, 0..LEN as usize, 1..LEN as usize, 0u8..3);
    let store =
        run().prop_map(|(worker, chain, from, len, tier)| Step::Store { worker, chain, from, len, tier });
    let remove =
        run().prop_map(|(worker, chain, from, len, tier)| Step::Remove { worker, chain, from, len, tier });
    let set = (0..WORKERS, 0..CHAINS, 0u8..3).prop_map(|(worker, chain, tier)| Step::StoreSet {
        worker,
        chain,
        tier,
    });
    let hit = (0..CHAINS, 1..LEN as usize).prop_map(|(chain, len)| Step::Hit { chain, len });
    let step = prop_oneof![
        8 => store, 4 => remove, 1 => set, 2 => hit,
        1 => (0..WORKERS).prop_map(|worker| Step::Replace { worker }), 1 => Just(Step::Tidy)
    ];
    prop::collection::vec(step, 0..80)
}

/// Sets of (hash, tier), and the numbers that workers have in the index.
#[derive(Default)]
struct Model {
    sets: BTreeMap<usize, BTreeSet<(u64, u8)>>,
    workers: Vec<Worker>,
}

impl Model {
    fn new(index: &Index) -> Self {
        let workers = (0..WORKERS).map(|_| index.add_worker().unwrap()).collect();
        Self { sets: (0..WORKERS).map(|worker| (worker, BTreeSet::new())).collect(), workers }
    }

    /// Does the same to both. Workers store what they do not have and remove what they have.
    fn step(&mut self, index: &Index, step: Step) {
        match step {
            Step::Store { worker, chain, from, len, tier } => {
                let blocks = forked(chain, LEN);
                let to = (from + len).min(blocks.len());
                let parent = from.checked_sub(1).map_or(Parent::Root, |at| Parent::Block(blocks[at]));
                let set = self.sets.get_mut(&worker).unwrap();
                let mut parent = parent;
                for hash in &blocks[from..to] {
                    if set.insert((*hash, tier)) {
                        assert_eq!(index.store(self.workers[worker], parent, &[*hash], tier), 1);
                    }
                    parent = Parent::Block(*hash);
                }
            }
            Step::StoreSet { worker, chain, tier } => {
                let set = self.sets.get_mut(&worker).unwrap();
                let mut blocks = forked(chain, LEN);
                blocks.retain(|hash| set.insert((*hash, tier)));
                let absent = index.store(self.workers[worker], Parent::Unknown, &blocks, tier);
                assert_eq!(absent, blocks.len());
            }
            Step::Remove { worker, chain, from, len, tier } => {
                let set = self.sets.get_mut(&worker).unwrap();
                let mut blocks: Vec<_> = forked(chain, LEN).into_iter().skip(from).take(len).collect();
                blocks.retain(|hash| set.remove(&(*hash, tier)));
                assert_eq!(index.remove(self.workers[worker], &blocks, tier), blocks.len());
            }
            Step::Replace { worker } => {
                index.drop_worker(self.workers[worker]);
                self.sets.insert(worker, BTreeSet::new());
                self.workers[worker] = index.add_worker().unwrap();
            }
            Step::Hit { chain, len } => index.hit(&forked(chain, LEN)[..len]),
            Step::Tidy => _ = index.tidy(),
        }
    }

    fn digest(&self, worker: usize) -> u64 {
        self.sets[&worker].iter().fold(0, |sum, (hash, tier)| sum.wrapping_add(digest(*hash, *tier)))
    }

    fn has(&self, worker: usize, hash: u64) -> bool {
        (0..3).any(|tier| self.sets[&worker].contains(&(hash, tier)))
    }

    /// Blocks until the first that is missing, and whether none comes after it.
    fn prefix(&self, worker: usize, prompt: &[u64]) -> (u32, bool) {
        let depth = prompt.iter().take_while(|hash| self.has(worker, **hash)).count();
        (depth as u32, prompt[depth..].iter().all(|hash| !self.has(worker, *hash)))
    }
}

proptest! {
    #[test]
    fn it_is_the_set_of_sets(steps in steps(), shards in 1usize..5) {
        let index = index(1 << 20, shards, 16);
        let mut model = Model::new(&index);
        for step in steps {
            model.step(&index, step);
        }
        let mut pairs = 0;
        for (worker, set) in &model.sets {
            let held = Held { count: set.len() as u64, digest: model.digest(*worker), forgotten: 0 };
            prop_assert_eq!(index.held(model.workers[*worker]), held);
            pairs += held.count;
        }
        prop_assert_eq!((index.totals().pairs, index.totals().forgotten), (pairs, 0));
        for chain in 0..CHAINS {
            let prompt = forked(chain, LEN);
            for (at, worker) in model.workers.iter().enumerate() {
                let (depth, without_holes) = model.prefix(at, &prompt);
                let found = found(&index, *worker, &prompt);
                prop_assert_eq!(index.depth(*worker, &prompt), depth);
                prop_assert!(found >= depth, "never too short");
                prop_assert!(!without_holes || found == depth, "{found} is too long without a hole, {depth}");
            }
        }
    }

    #[test]
    fn whatever_is_forgotten_the_accounts_are_the_workers(steps in steps(), kib in 24usize..32, shards in 1usize..3) {
        let index = index(kib << 10, shards, 16);
        let mut model = Model::new(&index);
        for step in steps {
            model.step(&index, step);
            prop_assert!(index.totals().bytes <= kib << 10);
        }
        for (worker, set) in &model.sets {
            let held = index.held(model.workers[*worker]);
            prop_assert_eq!(held.count + held.forgotten, set.len() as u64);
            prop_assert_eq!(held.digest, model.digest(*worker));
            for chain in 0..CHAINS {
                let prompt = forked(chain, LEN);
                prop_assert!(index.depth(model.workers[*worker], &prompt) <= model.prefix(*worker, &prompt).0, "only what it has");
            }
        }
    }
}

#[test]
fn a_block_is_known_by_all_before_it_and_not_by_its_place() {
    let index = index(1 << 20, 2, 16);
    let (a, b): (Vec<_>, Vec<_>) = ((0..20).collect(), (100..117).collect());
    let (one, two) = (index.add_worker().unwrap(), index.add_worker().unwrap());
    index.store(one, Parent::Root, &chained(a.iter().copied()), 0);
    index.store(two, Parent::Root, &chained(b.iter().copied()), 0);
    let b_then_a = chained(b.iter().chain(&a).copied());
    assert_eq!((found(&index, one, &b_then_a), found(&index, two, &b_then_a)), (0, 17));
    index.store(one, Parent::Root, &b_then_a, 0);
    assert_eq!((found(&index, one, &b_then_a), found(&index, two, &b_then_a)), (37, 17));
    index.remove(one, &chained(a.iter().copied()), 0);
    assert_eq!((found(&index, one, &b_then_a), found(&index, one, &chained(a))), (37, 0));
}

#[test]
fn what_cannot_be_told_from_another_block_is_counted_as_forgotten() {
    let index = index(1 << 20, 2, 16);
    let worker = index.add_worker().unwrap();
    // The same hash twice stands for two hashes with the same 56 bits.
    assert_eq!(index.store(worker, Parent::Unknown, &[7, 8, 7], 0), 3);
    let sum = [7, 8, 7].iter().fold(0u64, |sum, hash| sum.wrapping_add(digest(*hash, 0)));
    assert_eq!(index.held(worker), Held { count: 2, digest: sum, forgotten: 1 });
    assert_eq!(index.remove(worker, &[7, 7], 0), 2);
    assert_eq!(index.held(worker), Held { count: 1, digest: digest(8, 0), forgotten: 0 });
}

#[test]
fn a_dropped_worker_is_gone_at_once_and_its_number_comes_back_after_the_sweep() {
    let index = index(1 << 20, 2, 3);
    let prompt = forked(0, 100);
    let workers = [(); 3].map(|()| index.add_worker().unwrap());
    for worker in workers {
        index.store(worker, Parent::Root, &prompt, 0);
    }
    index.drop_worker(workers[1]);
    assert_eq!(workers.map(|worker| found(&index, worker, &prompt)), [100, 0, 100]);
    assert_eq!(index.held(workers[1]), Held::default());
    assert_eq!(index.totals().pairs, 200);
    // What comes late for it changes nothing.
    assert_eq!(index.store(workers[1], Parent::Root, &prompt, 0), 0);
    let next = index.add_worker().unwrap();
    assert_eq!((next.place(), next == workers[1]), (workers[1].place(), false));
    assert_eq!((found(&index, next, &prompt), found(&index, workers[2], &prompt)), (0, 100));
    assert_eq!(index.add_worker(), None);
}

#[test]
fn a_block_may_have_thousands_of_holders() {
    let index = index(16 << 20, 2, 2_000);
    let prompt = forked(0, 32);
    let workers: Vec<_> = (0..2_000).map(|_| index.add_worker().unwrap()).collect();
    for (at, worker) in workers.iter().enumerate() {
        index.store(*worker, Parent::Root, &prompt[..1 + at % 32], 0);
    }
    let mut search = armature_prefix_index::Search::default();
    let found: BTreeMap<_, _> = index.find(&prompt, &mut search).iter().copied().collect();
    for (at, worker) in workers.iter().enumerate() {
        assert_eq!(found.get(worker), Some(&(1 + at as u32 % 32)));
    }
    for worker in workers.iter().skip(2) {
        index.remove(*worker, &prompt, 0);
    }
    assert_eq!(index.totals().pairs, 3);
}
