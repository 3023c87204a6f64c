//! What goes when memory runs out, and in which order.

use armature_prefix_index::{Index, Parent, Worker};
use proptest::prelude::*;

use crate::rig::{chained, found, index};

/// Chains of one worker that share nothing but, in families of ten, their first blocks.
fn chain(c: u64, len: u64) -> Vec<u64> {
    chained((0..len).map(|i| if i < 8 { c / 10 * 100_000 + i } else { (c + 1) * 1_000_000 + i }))
}

/// Blocks that are still reachable: each chain's verified prefix, everything once.
fn reachable(index: &Index, worker: Worker, chains: &[Vec<u64>]) -> usize {
    let mut held = std::collections::BTreeSet::new();
    for chain in chains {
        held.extend(chain[..index.depth(worker, chain) as usize].iter().copied());
    }
    held.len()
}

proptest! {
    #[test]
    fn chains_are_forgotten_from_their_tails(lens in prop::collection::vec(1u64..300, 5..60), hits in prop::collection::vec((0usize..60, 1usize..300), 0..60)) {
        let index = index(28 << 10, 1, 4);
        let worker = index.add_worker().unwrap();
        let mut chains = Vec::new();
        for (c, len) in lens.iter().enumerate() {
            let chain = chain(c as u64, *len);
            index.store(worker, Parent::Root, &chain, 0);
            chains.push(chain);
            if let Some((hit, len)) = hits.get(c) && let Some(chain) = chains.get(*hit) {
                let depth = index.depth(worker, chain) as usize;
                index.hit(&chain[..depth.min(*len)]);
            }
        }
        prop_assert_eq!(reachable(&index, worker, &chains) as u64, index.held(worker).count, "no block is behind a hole");
    }
}

#[test]
fn what_requests_hit_outlives_what_they_do_not() {
    let index = index(256 << 10, 2, 4);
    let worker = index.add_worker().unwrap();
    let wanted: Vec<_> = (0..10).map(|c| chain(c * 10, 200)).collect();
    for chain in &wanted {
        index.store(worker, Parent::Root, chain, 0);
    }
    for c in 100..1_000 {
        for chain in &wanted {
            index.hit(chain);
        }
        index.store(worker, Parent::Root, &chain(c * 10, 100), 0);
    }
    assert!(index.held(worker).forgotten > 10_000);
    for chain in &wanted {
        assert_eq!(found(&index, worker, chain), 200);
    }
    // Without hits they go as others do.
    for c in 1_000..4_000 {
        index.store(worker, Parent::Root, &chain(c * 10, 100), 0);
    }
    let left: u32 = wanted.iter().map(|chain| found(&index, worker, chain)).sum();
    assert!(left < 1_000, "{left}");
}

#[test]
fn what_is_stored_below_a_forgotten_block_is_not_kept() {
    let index = index(28 << 10, 1, 4);
    let worker = index.add_worker().unwrap();
    let long = chain(0, 3_000);
    index.store(worker, Parent::Root, &long, 0);
    let held = index.held(worker);
    assert!(held.forgotten > 0 && held.count + held.forgotten == 3_000);
    let child = chained([7]);
    assert_eq!(index.store(worker, Parent::Block(*long.last().unwrap()), &child, 0), 1);
    assert_eq!((index.held(worker).count, index.held(worker).forgotten), (held.count, held.forgotten + 1));
    // Removing what is forgotten settles the account.
    assert_eq!(index.remove(worker, &long, 0) + index.remove(worker, &child, 0), 3_001);
    assert_eq!(index.held(worker), armature_prefix_index::Held::default());
}
