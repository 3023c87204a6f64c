//! Ten million distinct prefixes, stored and removed, three times: what is given back, and whether a budget that is too small is kept.

use armature_prefix_index::{Index, Parent};

use crate::measure::resident;
use crate::ours;
use crate::workload::random;

const PREFIXES: u64 = 10_000_000;
/// Blocks per prefix.
const BLOCKS: u64 = 2;

pub(crate) fn print() {
    println!(
        "{:34} {:>12} {:>12} {:>12} {:>12}",
        "10 M prefixes of 2 blocks", "blocks held", "MB, full", "MB, emptied", "resident"
    );
    for (name, budget) in [("budget 1,024 MB", 1 << 30), ("budget 128 MB", 128 << 20)] {
        let index = ours::index(budget);
        for round in 0..3 {
            let worker = index.add_worker().expect("there is room");
            let each = |n: u64| [0, 1].map(|block| random(round << 40 | n * BLOCKS + block));
            for n in 0..PREFIXES {
                index.store(worker, Parent::Root, &each(n), 0);
                assert!(n % 1_000 > 0 || index.totals().bytes <= budget, "the budget is exceeded");
            }
            let held = index.held(worker);
            assert_eq!(held.count + held.forgotten, PREFIXES * BLOCKS);
            let full = bytes(&index);
            for n in 0..PREFIXES {
                assert_eq!(index.remove(worker, &each(n), 0), 2);
            }
            assert_eq!(index.held(worker), armature_prefix_index::Held::default());
            while index.tidy() {}
            let name = format!("{name}, round {}", round + 1);
            println!(
                "{name:34} {:>12} {full:>12.1} {:>12.1} {:>12.1}",
                held.count,
                bytes(&index),
                resident() as f64 / 1e6
            );
        }
    }
}

fn bytes(index: &Index) -> f64 {
    index.totals().bytes as f64 / 1e6
}
