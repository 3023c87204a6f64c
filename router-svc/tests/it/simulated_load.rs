//! How load is spread and accounted for, by the router's domain in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::InstanceId;
use armature_router::domain::load::Report;
use armature_router::domain::policy::Settings;
use armature_router::domain::reservations::{Settled, Settlement};
use armature_router::domain::router::{Request, Router};
use armature_router::domain::units::{Blocks, Time};
use armature_router::domain::worker::{Limits, Worker};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

use crate::simulated_fleet::{
    Asked, BOUNDS, Fate, Fleet, dispatch, key, question, rank, request, router, worker,
};

const ROOMY: Limits = Limits { max_running: 256, max_waiting: 256, max_batched_tokens: 2048 };

fn at(millis: u64) -> Time {
    Time(Duration::from_millis(millis))
}

fn fleet(workers: impl IntoIterator<Item = u64>) -> Vec<Worker> {
    workers.into_iter().map(|n| worker(n, ROOMY)).collect()
}

/// A router that knows these workers by a report of each.
fn knowing(workers: std::ops::RangeInclusive<u64>) -> Router {
    let mut router = router(Settings::default());
    router.members(fleet(workers.clone()), at(0));
    for n in workers {
        report(&mut router, n, 0, &[], 0);
    }
    router
}

fn report(router: &mut Router, n: u64, running: u32, settled: &[Settled], now: u64) {
    let report = Report { running, free: Blocks(1 << 19), received: at(now), ..Report::default() };
    router.report(InstanceId(n), vec![(rank(n), report)], settled, at(now));
}

fn settled(n: u64, settlement: Settlement) -> Settled {
    Settled { key: key(n), settlement, prefill_worker: None }
}

/// Routes a prompt that nobody has; answers where it goes.
fn route(router: &mut Router, n: u64, prompt: u64, seeds: &mut StdRng, now: u64) -> u64 {
    // Without its blocks: nobody will come with the same.
    let asked = Request { key: key(n), question: Arc::new(question(prompt, 1)), prompt: Arc::new([]) };
    let answer = router.route(&asked, seeds.next_u64(), at(now)).unwrap();
    answer.decode.rank.instance.0
}

#[test]
fn sequential_misses_on_idle_workers_spread_evenly() {
    let workers = [ROOMY; 8];
    let mut fleet = Fleet::new(dispatch(None, BOUNDS), &workers, 1);
    for n in 0..800 {
        // One after the other: each is done and reported before the next one comes.
        let asked = Asked {
            request: request(n + 1, question(320, 10)),
            tenant: 0,
            priority: 0,
            wait: Duration::from_secs(1),
            service: Duration::from_millis(50),
        };
        fleet.ask(Duration::from_millis(n * 200), asked);
    }
    fleet.run(Duration::from_secs(300));
    let mut counts = BTreeMap::<u64, u32>::new();
    for fate in fleet.fates.values() {
        let Fate::Served { worker, .. } = fate else { panic!("{fate:?}") };
        *counts.entry(*worker).or_default() += 1;
    }
    // 100 each; four standard deviations of a fair draw are 37.
    assert!(counts.len() == 8 && counts.values().all(|count| (63..=137).contains(count)), "{counts:?}");
}

#[test]
fn long_prompts_for_one_token_spread_by_the_work_that_is_pending() {
    for seed in 0..20 {
        let mut seeds = StdRng::seed_from_u64(seed);
        let mut router = knowing(1..=8);
        let mut work = BTreeMap::<u64, u64>::new();
        for n in 1..=200 {
            // No report comes meanwhile.
            let prompt = seeds.random_range(1_000..50_000);
            *work.entry(route(&mut router, n, prompt, &mut seeds, 1)).or_default() += prompt;
        }
        let (least, most) = (work.values().min().unwrap(), work.values().max().unwrap());
        assert!(work.len() == 8 && most - least <= 50_000, "seed {seed}: {work:?}");
    }
}

#[test]
fn a_worker_that_comes_and_goes_under_load_loses_no_accounting() {
    for seed in 0..10 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut router = knowing(1..=4);
        let mut present = vec![1, 2, 3, 4];
        // By the rules of the contract: unsettled by worker; one of a worker that went is nobody's.
        let mut open = BTreeMap::<u64, u64>::new();
        let mut ever = Vec::new();
        for step in 0..1_000_u64 {
            let now = step * 3;
            match rng.random_range(0..10) {
                0..5 if !present.is_empty() => {
                    let n = step + 1;
                    let to = route(&mut router, n, rng.random_range(1..5_000), &mut rng, now);
                    assert!(present.contains(&to), "seed {seed}: a worker that is gone was chosen");
                    open.insert(n, to);
                    ever.push((n, to));
                }
                5..8 => {
                    // Reports come late, twice, and from workers that are known no more.
                    let Some((n, to)) = ever.choose(&mut rng).copied() else { continue };
                    let how = *[Settlement::Admitted, Settlement::Refused, Settlement::Finished]
                        .choose(&mut rng)
                        .unwrap();
                    report(&mut router, to, rng.random_range(0..9), &[settled(n, how)], now);
                    open.remove(&n);
                }
                8 if present.contains(&4) => {
                    present.retain(|n| *n != 4);
                    router.members(fleet(present.iter().copied()), at(now));
                    open.retain(|_, to| *to != 4);
                }
                8 => {
                    present.push(4);
                    router.members(fleet(present.iter().copied()), at(now));
                }
                _ => router.release(&[key(rng.random_range(1..=step + 1))], at(now)),
            }
            // What was released is not open either; a key may be released before it is routed, but those are never reused here.
            for view in router.views() {
                let mine = open.values().filter(|to| **to == view.worker.rank.instance.0).count();
                assert!(
                    view.pending.legs as usize <= mine,
                    "seed {seed}, step {step}: {:?} of {mine}",
                    view.pending
                );
            }
            assert_eq!(
                router.views().iter().map(|view| view.pending.legs as usize).sum::<usize>(),
                router.totals().open
            );
        }
        router.expire(at(1_000 * 3 + 10_000));
        assert_eq!(router.totals().open, 0, "seed {seed}");
        assert!(router.views().iter().all(|view| view.pending == Default::default()), "seed {seed}");
    }
}

#[test]
fn a_standby_that_takes_over_under_load_herds_nobody_and_never_chooses_a_removed_worker() {
    for seed in 0..20 {
        let mut seeds = StdRng::seed_from_u64(seed);
        let (mut first, mut standby) = (knowing(1..=8), knowing(1..=8));
        for n in 1..=64 {
            route(&mut first, n, 1_000, &mut seeds, 1);
        }
        // The first dies. Workers have told both what they have, some of them of what the first one sent; one is gone for good.
        for n in 1..=8 {
            report(&mut standby, n, 8, &[settled(n, Settlement::Admitted)], 30);
        }
        standby.members(fleet(2..=8), at(31));
        let mut counts = BTreeMap::<u64, u32>::new();
        for n in 1..=70 {
            // The same keys come again, for their callers had no answer; and new ones.
            *counts.entry(route(&mut standby, n, 1_000, &mut seeds, 32)).or_default() += 1;
        }
        assert!(!counts.contains_key(&1), "seed {seed}: {counts:?}");
        assert!(counts.len() == 7 && counts.values().all(|count| *count == 10), "seed {seed}: {counts:?}");
        // A late report of the removed one brings nothing back.
        report(&mut standby, 1, 0, &[], 40);
        for n in 100..=135 {
            assert_ne!(route(&mut standby, n, 1_000, &mut seeds, 41), 1, "seed {seed}");
        }
        assert!(standby.views().iter().all(|view| view.worker.rank != rank(1)));
        assert_eq!(standby.totals().open, 106);
    }
}
