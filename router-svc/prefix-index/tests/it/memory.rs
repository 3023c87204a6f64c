//! Memory: bounded at every instant, and given back.

use armature_prefix_index::{Parent, Worker};

use crate::rig::{chained, found, index};

fn prefix(n: u64) -> Vec<u64> {
    chained([n, n + 1])
}

#[test]
fn prefixes_stored_and_removed_leave_nothing() {
    const PREFIXES: u64 = 100_000;
    let index = index(16 << 20, 2, 4);
    let worker = index.add_worker().unwrap();
    let empty = index.totals().bytes;
    for _ in 0..2 {
        for n in 0..PREFIXES {
            index.store(worker, Parent::Root, &prefix(n * 2), 0);
        }
        while index.tidy() {}
        assert_eq!(index.held(worker).count, 2 * PREFIXES);
        let per_block = (index.totals().bytes - empty) as f64 / (2 * PREFIXES) as f64;
        assert!(per_block < 15.0, "{per_block} bytes per block");
        for n in 0..PREFIXES {
            assert_eq!(index.remove(worker, &prefix(n * 2), 0), 2);
        }
        while index.tidy() {}
        assert_eq!(index.totals().bytes, empty);
    }
}

#[test]
fn a_budget_is_kept_while_more_is_stored_than_fits() {
    const MAX: usize = 1 << 20;
    let index = index(MAX, 2, 8);
    let workers = [(); 8].map(|()| index.add_worker().unwrap());
    let hot = prefix(7);
    for n in 0..200_000u64 {
        let worker = workers[(n % 8) as usize];
        index.store(worker, Parent::Root, &prefix(n * 2), (n % 3) as u8);
        // Sets of several, too.
        index.store(worker, Parent::Root, &prefix((n / 8) * 2 + 1_000_000), 0);
        index.hit(&hot);
        assert!(index.totals().bytes <= MAX);
    }
    let totals = index.totals();
    assert!(totals.pairs > 30_000 && totals.forgotten > 300_000, "{totals:?}");
    assert!(
        found(&index, workers[7], &prefix(399_998)) == 2 || found(&index, workers[7], &prefix(399_998)) == 0
    );
}

#[test]
fn workers_that_come_and_go_leave_nothing() {
    let index = index(4 << 20, 2, 64);
    let prompt = chained(0..200);
    let mut workers: Vec<Worker> = Vec::new();
    for n in 0..2_000usize {
        let worker = index.add_worker().unwrap();
        index.store(worker, Parent::Root, &prompt[..1 + n % 200], 0);
        workers.push(worker);
        if workers.len() > 20 {
            index.drop_worker(workers.remove(n % 20));
        }
    }
    for worker in &workers {
        assert_eq!(u64::from(found(&index, *worker, &prompt)), index.held(*worker).count);
    }
    workers.iter().for_each(|worker| index.drop_worker(*worker));
    while index.tidy() {}
    // What is left are the numbers of sets, which are used again.
    let totals = index.totals();
    assert_eq!(totals.pairs, 0);
    let again = index.add_worker().unwrap();
    index.store(again, Parent::Root, &prompt, 0);
    assert_eq!(found(&index, again, &prompt), 200);
}
