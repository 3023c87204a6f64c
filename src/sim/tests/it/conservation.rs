//! Whatever comes: every request ends once, nothing is held at the end, and a seed repeats to the last bit.

use armature_router::config::LocalPrefill;
use armature_router::domain::policy::PolicyKind;
use armature_sim::{Kill, Pools, Settings, SimRequest, Workload};
use armature_worker::domain::prefix_cache::Eviction;
use proptest::prelude::*;

use crate::rig::{self, ms};

fn workload(requests: u64, burst: u32) -> Workload {
    Workload {
        requests,
        rate: 20.0,
        burst,
        prefixes: 3,
        prefix_tokens: 300,
        turns: 3,
        think: ms(400.0),
        input_tokens: 700,
        output_tokens: 40,
    }
}

fn pools() -> impl Strategy<Value = Pools> {
    prop_oneof![
        (1usize..4).prop_map(Pools::Aggregated),
        (1usize..3, 1usize..3).prop_map(|(prefill, decode)| Pools::Disaggregated { prefill, decode }),
    ]
}

fn policies() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![Just(PolicyKind::Kv), Just(PolicyKind::RoundRobin), Just(PolicyKind::LeastLoaded)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_nothing_is_left(
        pools in pools(), policy in policies(), burst in 1u32..9, seed in 0u64..1000,
        fallback: bool, lru: bool, step_target in prop::option::of(20.0..200.0), delay in prop_oneof![Just(0.0), Just(75.0)],
        kill in prop::option::of((0.0..2000.0, 0usize..2)),
    ) {
        let mut settings = rig::settings(pools, policy);
        settings.seed = seed;
        // Room for a few prompts: admission waits, and decoding preempts.
        settings.machine.blocks = 60;
        settings.machine.max_batched_tokens = 512;
        settings.machine.eviction = if lru { Eviction::Lru } else { Eviction::TwoSegment };
        settings.machine.step_target = step_target.map(ms);
        settings.event_delay = ms(delay);
        settings.policy.local_prefill = if fallback { LocalPrefill::Fallback } else { LocalPrefill::Allowed };
        let kill = kill.filter(|(_, worker)| *worker < pools.workers());
        settings.kills = kill.map(|(at, worker)| Kill { at: ms(at), worker }).into_iter().collect();
        let requests: Vec<SimRequest> = workload(60, burst).requests(seed).unwrap().collect();
        let outcome = rig::run(settings.clone(), &requests);
        if settings.kills.is_empty() {
            let wanted: u64 = requests.iter().map(|request| u64::from(request.output)).sum();
            prop_assert_eq!((outcome.finished, outcome.output_tokens), (60, wanted));
        }
        prop_assert!(outcome.hit_ratio <= outcome.hit_ceiling + 1e-12);
        prop_assert_eq!(rig::run(settings, &requests), outcome);
    }
}

#[test]
fn another_seed_breaks_ties_another_way() {
    let run = |seed| {
        let settings = Settings { seed, ..rig::settings(Pools::Aggregated(4), PolicyKind::Kv) };
        let requests: Vec<SimRequest> = workload(200, 6).requests(1).unwrap().collect();
        rig::run(settings, &requests)
    };
    assert_ne!(run(1).workers, run(2).workers);
}

#[test]
fn a_thousand_workers_share_what_comes() {
    let mut settings = rig::settings(Pools::Aggregated(1000), PolicyKind::Kv);
    settings.machine.blocks = 64;
    let made = Workload { rate: 4000.0, prefixes: 0, turns: 1, ..workload(500, 1) };
    let requests: Vec<SimRequest> = made.requests(1).unwrap().collect();
    let outcome = rig::run(settings, &requests);
    let used = outcome.workers.iter().filter(|worker| worker.passes > 0).count();
    assert!(outcome.finished == 500 && used > 450, "{used} workers computed something");
}
