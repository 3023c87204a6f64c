//! Prefill workers and decode workers.

use std::time::Duration;

use armature_router::config::LocalPrefill;
use armature_router::domain::policy::PolicyKind;
use armature_sim::{Kill, Pools, Settings, SimRequest};

use crate::rig::{self, assert_ms, decode, ms, prefill, request};

fn settings(prefill: usize, decode: usize) -> Settings {
    let mut settings = rig::settings(Pools::Disaggregated { prefill, decode }, PolicyKind::Kv);
    settings.policy.local_prefill = LocalPrefill::Fallback;
    settings
}

fn many() -> Vec<SimRequest> {
    (0..60).map(|n| request(ms(n as f64 * 40.0), n % 7, 700 + 10 * n as u32, 20)).collect()
}

#[test]
fn the_first_token_comes_from_the_prefill_worker_and_the_next_when_the_kv_has_landed() {
    let outcome = rig::run(settings(1, 1), &[request(Duration::ZERO, 1, 1000, 3)]);
    assert_ms(outcome.ttft.mean, prefill(1000.0));
    // 1,000 tokens at a microsecond each, then two steps on the decode worker.
    assert_ms(outcome.e2e.mean, prefill(1000.0) + 1.0 + 2.0 * decode(16.0));
    let [source, leader] = [outcome.workers[0], outcome.workers[1]];
    assert_eq!((source.prefill_tokens, source.decode_tokens), (1000, 0));
    assert_eq!((leader.prefill_tokens, leader.decode_tokens), (0, 2));
}

#[test]
fn a_single_token_needs_no_decode_worker_to_compute() {
    let outcome = rig::run(settings(1, 1), &[request(Duration::ZERO, 1, 300, 1)]);
    assert_ms(outcome.e2e.mean, prefill(300.0));
    assert_eq!(outcome.workers[1].passes, 0);
}

#[test]
fn all_of_many_finish_and_caches_of_both_pools_are_used() {
    let outcome = rig::run(settings(2, 2), &many());
    assert_eq!(outcome.finished, 60);
    assert!(outcome.hit_ratio > 0.3 && outcome.hit_ratio <= outcome.hit_ceiling, "{outcome:?}");
}

#[test]
fn without_prefill_workers_the_decode_workers_go_on_alone() {
    let kills = vec![Kill { at: ms(700.0), worker: 0 }, Kill { at: ms(1500.0), worker: 1 }];
    let outcome = rig::run(Settings { kills, ..settings(2, 2) }, &many());
    assert_eq!((outcome.finished, outcome.refused), (60, 0));
    assert!(outcome.workers[2].prefill_tokens + outcome.workers[3].prefill_tokens > 0);
}
