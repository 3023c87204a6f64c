//! A small trace with a recorded result: a change of scheduler, timing or trace reader that moves a number shows here.
//!
//! `ARMATURE_BOOTSTRAP=write cargo test -p armature-sim` records anew.

use std::path::PathBuf;

use armature_router::domain::policy::PolicyKind;
use armature_sim::{Outcome, Pools, Simulation, Trace};
use serde_json::json;

use crate::rig;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn run(policy: PolicyKind) -> Outcome {
    let mut settings = rig::settings(Pools::Aggregated(4), policy);
    settings.machine.blocks = 512;
    let mut simulation = Simulation::new(settings).unwrap();
    let outcome = simulation.run(Trace::open(&file("sample.jsonl")).unwrap(), |_| {}).unwrap();
    assert_eq!(simulation.audit(), Ok(()));
    outcome
}

#[test]
fn round_robin_over_the_sample_is_as_recorded() {
    let run = run(PolicyKind::RoundRobin);
    let digits = |value: f64| (value * 1e6).round() / 1e6;
    let got = json!({
        "requests": run.requests, "finished": run.finished, "prompt_tokens": run.prompt_tokens, "output_tokens": run.output_tokens,
        "hit_ratio": digits(run.hit_ratio), "hit_ceiling": digits(run.hit_ceiling),
        "ttft_ms": [digits(run.ttft.mean), digits(run.ttft.p50), digits(run.ttft.p99)],
        "e2e_ms": [digits(run.e2e.mean), digits(run.e2e.p99)],
        "itl_ms": [digits(run.itl.p50), digits(run.itl.p99)],
        "imbalance": digits(run.imbalance),
        "passes": run.workers.iter().map(|worker| worker.passes).collect::<Vec<_>>(),
    });
    let text = serde_json::to_string_pretty(&got).unwrap() + "\n";
    if std::env::var("ARMATURE_BOOTSTRAP").is_ok_and(|mode| mode == "write") {
        std::fs::write(file("sample.recorded.json"), &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(file("sample.recorded.json")).unwrap());
}

#[test]
fn locality_and_load_beat_turns_on_the_sample() {
    let (kv, turns) = (run(PolicyKind::Kv), run(PolicyKind::RoundRobin));
    assert!(kv.hit_ratio > 1.15 * turns.hit_ratio, "{} against {}", kv.hit_ratio, turns.hit_ratio);
    assert!(kv.ttft.mean < 0.95 * turns.ttft.mean, "{} against {}", kv.ttft.mean, turns.ttft.mean);
}
