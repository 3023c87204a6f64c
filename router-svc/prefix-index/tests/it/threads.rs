//! Readers beside writers: what is there throughout is always found, and nobody is named who never had it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use armature_prefix_index::{Index, Parent, Search, Worker};

use crate::rig::{chained, index};

const CHAINS: u64 = 40;
const LEN: u64 = 100;

fn chain(c: u64) -> Vec<u64> {
    chained((0..LEN).map(|i| c * 1_000 + i))
}

/// Grows and shrinks every table, and lets `flapping` come and go as a holder of the chains.
fn churn(index: &Index, filler: Worker, flapping: Worker, rounds: u64, salt: u64) {
    for round in 0..rounds {
        let blocks: Vec<_> =
            (0..3_000).map(|n| chained([salt + round % 7 * 1_000_000 + n * 100_000_000])).collect();
        let blocks = blocks.concat();
        index.store(filler, Parent::Unknown, &blocks, 0);
        let prompt = chain(round % CHAINS);
        index.store(flapping, Parent::Root, &prompt[..(round % LEN) as usize], 1);
        if round % 7 == 6 {
            for old in 0..7u64 {
                let blocks: Vec<_> =
                    (0..3_000).map(|n| chained([salt + old * 1_000_000 + n * 100_000_000])).collect();
                index.remove(filler, &blocks.concat(), 0);
            }
        }
        index.remove(flapping, &prompt, 1);
    }
}

#[test]
fn readers_see_what_is_there_throughout_and_nothing_that_never_was() {
    // Memory waits for readers that are not scheduled: with less of it, blocks would have to be forgotten meanwhile.
    let index = index(64 << 20, 2, 64);
    let steady: Vec<_> = (0..CHAINS).map(|_| index.add_worker().unwrap()).collect();
    for (c, worker) in steady.iter().enumerate() {
        index.store(*worker, Parent::Root, &chain(c as u64), 0);
    }
    let fillers = [(); 2].map(|()| index.add_worker().unwrap());
    let flapping = [(); 2].map(|()| index.add_worker().unwrap());
    let (done, finds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (index, steady, done, finds) = (&index, &steady, &done, &finds);
            scope.spawn(move || {
                let mut search = Search::default();
                let mut n = reader;
                while !done.load(Ordering::Acquire) {
                    let c = n % CHAINS;
                    let prompt = chain(c);
                    let found = index.find(&prompt, &mut search);
                    let own = found.iter().find(|(worker, _)| *worker == steady[c as usize]);
                    assert_eq!(own.map(|(_, depth)| *depth), Some(LEN as u32), "chain {c}");
                    let strange = found
                        .iter()
                        .find(|(worker, _)| *worker != steady[c as usize] && !flapping.contains(worker));
                    assert_eq!(strange, None, "chain {c}");
                    assert_eq!(index.depth(steady[c as usize], &prompt), LEN as u32);
                    finds.fetch_add(1, Ordering::Relaxed);
                    n += 1;
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|at| {
                let (index, filler, flapping) = (&index, fillers[at], flapping[at]);
                scope.spawn(move || churn(index, filler, flapping, 210, 500 + at as u64))
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(finds.load(Ordering::Relaxed) > 0);
    for worker in fillers.into_iter().chain(flapping) {
        assert_eq!(index.held(worker), armature_prefix_index::Held::default());
    }
    assert_eq!((index.totals().pairs, index.totals().forgotten), (CHAINS * LEN, 0));
}
