//! One worker and known arrivals: times that can be written down.

use std::time::Duration;

use armature_router::domain::policy::PolicyKind;
use armature_sim::{Outcome, Pools, SimRequest};

use crate::rig::{self, assert_ms, decode, ms, prefill, request};

fn run(requests: &[SimRequest]) -> Outcome {
    rig::run(rig::settings(Pools::Aggregated(1), PolicyKind::Kv), requests)
}

/// Twice the mean less the one: for two values.
fn other(mean: f64, one: f64) -> f64 {
    2.0 * mean - one
}

#[test]
fn a_request_alone_takes_its_prefill_and_a_step_for_each_token_after_the_first() {
    let outcome = run(&[request(Duration::ZERO, 1, 1000, 3)]);
    assert_ms(outcome.ttft.mean, prefill(1000.0));
    // 1,000 to 1,002 tokens are 16 blocks.
    assert_ms(outcome.e2e.mean, prefill(1000.0) + 2.0 * decode(16.0));
    // Three digits.
    assert!((outcome.itl.mean / decode(16.0) - 1.0).abs() < 1e-3);
    assert_eq!((outcome.hit_ratio, outcome.hit_ceiling, outcome.imbalance), (0.0, 0.0, 1.0));
    assert_eq!((outcome.workers[0].passes, outcome.workers[0].prefill_tokens), (3, 1000));
    assert!((outcome.workers[0].busy - 1.0).abs() < 1e-9);
}

#[test]
fn who_arrives_in_a_pass_waits_for_its_end_and_slows_the_other() {
    let second_at = 10.0;
    let outcome = run(&[request(Duration::ZERO, 1, 1000, 2), request(ms(second_at), 2, 640, 1)]);
    let first = prefill(1000.0);
    // The second pass prefills 640 tokens and decodes one row, with 16 + 10 blocks in use; both requests end there.
    let both = first + prefill(640.0) + decode(26.0);
    assert_ms(outcome.ttft.max.min(other(outcome.ttft.mean, outcome.ttft.max)), first);
    assert_ms(outcome.ttft.max, both - second_at);
    assert_ms(outcome.e2e.max, both);
}

#[test]
fn requests_of_one_moment_share_a_pass() {
    let outcome = run(&[request(Duration::ZERO, 1, 1000, 1), request(Duration::ZERO, 2, 500, 1)]);
    assert_ms(outcome.ttft.p50, prefill(1500.0));
    assert_ms(outcome.ttft.max, outcome.ttft.p50);
}

#[test]
fn a_prompt_that_is_cached_computes_its_last_block_again() {
    // 1,024 tokens are 16 whole blocks; of the last one a token must be computed, so all of it is.
    let outcome = run(&[request(Duration::ZERO, 1, 1024, 1), request(ms(500.0), 1, 1024, 1)]);
    assert_ms(outcome.ttft.max, prefill(1024.0));
    assert_ms(other(outcome.ttft.mean, outcome.ttft.max), prefill(64.0));
    assert_eq!((outcome.hit_ratio, outcome.hit_ceiling), (960.0 / 2048.0, 960.0 / 2048.0));
}

#[test]
fn a_long_prompt_is_cut_by_the_token_budget_and_gives_no_token_before_its_end() {
    let outcome = run(&[request(Duration::ZERO, 1, 10_000, 1)]);
    assert_ms(outcome.ttft.mean, prefill(8192.0) + prefill(1808.0));
}

#[test]
fn what_fits_no_pool_is_refused_at_once() {
    let outcome =
        run(&[request(Duration::ZERO, 1, 64 * rig::BLOCKS as u32, 1), request(Duration::ZERO, 2, 64, 1)]);
    assert_eq!((outcome.finished, outcome.refused), (1, 1));
}
