//! Properties that every policy's decisions have.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, WorkerRank};
use proptest::prelude::*;

use super::decide::{Choice, evaluate};
use super::eligibility::exclusion;
use super::{Candidate, Constraints, Inputs, PolicyKind, PrefillChoice, Question, Refusal, Settings};
use crate::domain::load::{Load, Report};
use crate::domain::reservations::Pending;
use crate::domain::step_cost::StepPrior;
use crate::domain::units::{BlockSize, Blocks, Micros, Side, Tokens};
use crate::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};

const PROMPT: Tokens = Tokens(640);

fn set() -> ServedSet {
    let digest = |n| Digest(Arc::new([n]));
    ServedSet { model: digest(1), tokenizer: digest(2), template: digest(3) }
}

fn worker(n: u64, roles: Roles, status: Status, compat: u8) -> Worker {
    Worker {
        rank: WorkerRank::first(InstanceId(n)),
        address: "mem:w".into(),
        status,
        namespace: "default".into(),
        served_name: "m".into(),
        set: set(),
        roles,
        engine: "sim".into(),
        labels: Arc::default(),
        context_length: Tokens(10_000),
        block_size: BlockSize(16),
        kv_blocks: Blocks(1_000),
        compat_key: Digest(Arc::new([compat])),
        hash_scheme: "armature-xxh3-v1".into(),
        limits: Limits { max_running: 8, max_waiting: 8, max_batched_tokens: 2_048 },
        weight: 1.0,
        prior: StepPrior::default(),
    }
}

fn candidate() -> impl Strategy<Value = (Roles, Status, u8, u32, Option<Report>, u64)> {
    let roles = prop_oneof![
        Just(Roles { aggregated: true, ..Roles::default() }),
        Just(Roles { prefill: true, ..Roles::default() }),
        Just(Roles { decode: true, ..Roles::default() }),
        Just(Roles { prefill: true, decode: true, ..Roles::default() }),
    ];
    let status = prop_oneof![
        6 => Just(Status::Ready), 1 => Just(Status::Suspect), 1 => Just(Status::Starting), 1 => Just(Status::Draining)
    ];
    let report = (0u32..18, 0u64..5_000, 0u32..1_000, prop::option::of(0u64..1_000)).prop_map(
        |(running, uncomputed, active, age)| Report {
            running,
            uncomputed: Tokens(uncomputed),
            active: Blocks(active),
            free: Blocks((1_000 - active) / 40),
            victim_age: age.map(Duration::from_secs),
            ..Report::default()
        },
    );
    (roles, status, 0u8..2, 0u32..=40, prop::option::weighted(0.9, report), 0u64..100_000)
}

fn inputs() -> impl Strategy<Value = Inputs> {
    let policy =
        prop_oneof![Just(PolicyKind::Kv), Just(PolicyKind::RoundRobin), Just(PolicyKind::LeastLoaded)];
    let wish =
        prop_oneof![Just(PrefillChoice::ByCost), Just(PrefillChoice::Remote), Just(PrefillChoice::Local)];
    let flags = (any::<bool>(), any::<bool>());
    (prop::collection::vec(candidate(), 0..8), policy, wish, flags, any::<u64>(), 0u64..100).prop_map(
        |(candidates, policy, prefill, (local_prefill, migrated), seed, turn)| {
            let candidates = candidates.into_iter().enumerate();
            let candidates = candidates.map(|(n, (roles, status, compat, matched, report, pending))| {
                let worker = worker(n as u64 + 1, roles, status, compat);
                let pending = Pending { work: Micros(pending), ..Pending::default() };
                let load = Load::of(&worker, report.as_ref(), pending);
                Candidate { worker: Arc::new(worker), load, matched: Blocks(matched) }
            });
            let question = Question {
                namespace: "default".into(),
                set: set(),
                prompt: PROMPT,
                hashes: None,
                choices: 1,
                migrated,
                expected_output: None,
                constraints: Constraints { prefill, ..Constraints::default() },
            };
            let settings = Settings { policy, local_prefill, ..Settings::default() };
            Inputs { question: Arc::new(question), candidates: candidates.collect(), settings, seed, turn }
        },
    )
}

/// Workers in doubt after those that are not, those without a report after those with one.
fn class(candidate: &Candidate) -> (bool, bool) {
    (candidate.worker.status == Status::Suspect, !candidate.load.reported)
}

proptest! {
    #[test]
    fn equal_inputs_give_equal_decisions(inputs in inputs()) {
        let (one, two) = (evaluate(&inputs), evaluate(&inputs.clone()));
        prop_assert_eq!(one.choice, two.choice);
        for (a, b) in one.decode.iter().zip(&two.decode).chain(one.prefill.iter().zip(&two.prefill)) {
            prop_assert_eq!((a.at, a.cost.to_bits()), (b.at, b.cost.to_bits()));
        }
    }

    #[test]
    fn only_the_eligible_are_chosen(inputs in inputs()) {
        let Ok(Choice { decode, prefill }) = evaluate(&inputs).choice else { return Ok(()) };
        let leader = &inputs.candidates[decode];
        prop_assert_eq!(exclusion(&inputs.question, Side::Decode, leader), None);
        prop_assert!(prefill.len() <= 3);
        for at in &prefill {
            let helper = &inputs.candidates[*at];
            prop_assert_eq!(exclusion(&inputs.question, Side::Prefill, helper), None);
            prop_assert_eq!(&helper.worker.compat_key, &leader.worker.compat_key);
            prop_assert_ne!(*at, decode);
        }
        let wish = inputs.question.constraints.prefill;
        prop_assert!(wish != PrefillChoice::Local || prefill.is_empty());
        let may_prefill = inputs.settings.local_prefill || leader.worker.roles.aggregated;
        prop_assert!(!prefill.is_empty() || may_prefill);
    }

    #[test]
    fn a_refusal_means_that_nobody_could(inputs in inputs()) {
        let Err(refusal) = evaluate(&inputs).choice else { return Ok(()) };
        let why = |candidate| exclusion(&inputs.question, Side::Decode, candidate);
        let may_prefill = |it: &Candidate| inputs.settings.local_prefill || it.worker.roles.aggregated;
        let alone = inputs.candidates.iter().any(|it| why(it).is_none() && may_prefill(it));
        prop_assert!(!alone, "{refusal}");
        let full = inputs.candidates.iter().any(|it| why(it) == Some(super::eligibility::Exclusion::Full));
        let busy = matches!(refusal, Refusal::Busy { .. });
        prop_assert!(!busy || full);
    }

    #[test]
    fn migrated_requests_have_room_beyond_that_of_new_ones(requests in 0u32..40) {
        let roles = Roles { aggregated: true, ..Roles::default() };
        let worker = worker(1, roles, Status::Ready, 0);
        let load = Load { requests, ..Load::of(&worker, None, Pending::default()) };
        // It runs 8 and queues 8, and as many migrated ones as it runs.
        prop_assert_eq!(load.full(&worker, false), requests >= 16);
        prop_assert_eq!(load.full(&worker, true), requests >= 24);
    }

    #[test]
    fn doubt_and_silence_rank_last(inputs in inputs()) {
        let evaluation = evaluate(&inputs);
        for ranked in [&evaluation.decode, &evaluation.prefill] {
            let classes: Vec<_> = ranked.iter().map(|scored| class(&inputs.candidates[scored.at])).collect();
            prop_assert!(classes.is_sorted());
        }
    }

    #[test]
    fn costs_are_numbers_and_fall_with_what_is_cached(mut inputs in inputs(), more in 0u32..40) {
        inputs.settings.policy = PolicyKind::Kv;
        let cost = |inputs: &Inputs| -> Vec<(usize, f64)> {
            let mut costs: Vec<_> = evaluate(inputs).prefill.iter().map(|scored| (scored.at, scored.cost)).collect();
            costs.sort_unstable_by_key(|(at, _)| *at);
            costs
        };
        let before = cost(&inputs);
        for candidate in &mut inputs.candidates {
            candidate.matched = Blocks((candidate.matched.0 + more).min(40));
        }
        let after = cost(&inputs);
        prop_assert!(before.iter().chain(&after).all(|(_, cost)| cost.is_finite() && *cost >= 0.0));
        // Another leader may have other helpers; the same helper never costs more.
        for (at, cost) in &after {
            if let Some((_, was)) = before.iter().find(|(other, _)| other == at) {
                prop_assert!(cost <= was);
            }
        }
    }
}
