//! Properties that every policy's decisions have.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, WorkerRank};
use proptest::prelude::*;

use super::decide::{Choice, evaluate, excluded};
use super::{
    Adapter, Candidate, Constraints, Inputs, PolicyKind, PrefillChoice, Question, Refusal, SessionKey,
    Settings,
};
use crate::domain::fit::{Fits, StepFit, StepModel};
use crate::domain::load::{Load, Report};
use crate::domain::reservations::Pending;
use crate::domain::step_cost::StepPrior;
use crate::domain::units::{BlockSize, Blocks, Micros, Millis, Side, Time, Tokens};
use crate::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};

const PROMPT: Tokens = Tokens(640);

fn set() -> ServedSet {
    let digest = |n| Digest(Arc::new([n]));
    ServedSet { model: digest(1), tokenizer: digest(2), template: digest(3) }
}

fn worker(n: u64, roles: Roles, status: Status, form: u8) -> Worker {
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
        spec_hash: if form == 2 { "new".into() } else { "old".into() },
        capabilities: Arc::new((form > 0).then(|| "adapter:a".to_owned()).into_iter().collect()),
        compat_key: Digest(Arc::new([form / 2])),
        hash_scheme: "armature-xxh3-v1".into(),
        limits: Limits { max_running: 8, max_waiting: 8, max_batched_tokens: 2_048 },
        weight: if n.is_multiple_of(3) { 0.25 } else { 1.0 },
        prior: StepPrior::default(),
        fit: StepFit::default(),
    }
}

fn candidate() -> impl Strategy<Value = (Roles, Status, u8, u32, Option<Report>, (u64, u64))> {
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
    (roles, status, 0u8..4, 0u32..=40, prop::option::weighted(0.9, report), (0u64..100_000, 0u64..100))
}

fn wishes() -> impl Strategy<Value = Constraints> {
    let rank = || (1u64..9).prop_map(|n| WorkerRank::first(InstanceId(n)));
    let prefill =
        prop_oneof![Just(PrefillChoice::ByCost), Just(PrefillChoice::Remote), Just(PrefillChoice::Local)];
    let pin = || prop::option::weighted(0.3, rank());
    let some = || prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(rank(), 1..6)];
    let session = prop::option::of(any::<u64>().prop_map(SessionKey));
    let adapter = prop::option::weighted(0.2, Just(Adapter::named("a")));
    (prefill, pin(), pin(), some(), some(), adapter, session).prop_map(
        |(prefill, pin_decode, pin_prefill, allow, exclude, adapter, session)| Constraints {
            prefill,
            pin_decode,
            pin_prefill,
            allow,
            exclude,
            adapter,
            session,
            ..Constraints::default()
        },
    )
}

/// Inputs of all kinds.
pub(crate) fn inputs() -> impl Strategy<Value = Inputs> {
    let policy = prop::sample::select(PolicyKind::ALL);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let temperature = prop_oneof![3 => Just(0.0), 1 => 0.0..1e4];
    let settings = (policy, flags, temperature);
    (prop::collection::vec(candidate(), 0..8), settings, wishes(), any::<u64>(), 0u64..100).prop_map(
        |(candidates, settings, constraints, seed, turn)| {
            let (policy, (local_prefill, mix_revisions, migrated), temperature) = settings;
            let candidates = candidates.into_iter().enumerate();
            let candidates = candidates.map(|(n, (roles, status, form, matched, report, (pending, age)))| {
                let worker = worker(n as u64 + 1, roles, status, form);
                let pending = Pending { work: Micros(pending), ..Pending::default() };
                let load = Load::of(&worker, report.as_ref(), pending, Time(Duration::from_secs(age)));
                Candidate {
                    worker: Arc::new(worker),
                    load,
                    matched: Blocks(matched),
                    warm_peers: Arc::default(),
                }
            });
            let settings = Settings {
                policy,
                local_prefill,
                mix_revisions,
                temperature: Millis(temperature),
                ..Settings::default()
            };
            let question = Arc::new(Question { migrated, ..question(constraints) });
            Inputs { question, candidates: candidates.collect(), topology: keys(), settings, seed, turn }
        },
    )
}

fn keys() -> Arc<[String]> {
    ["zone".to_owned(), "host".to_owned()].into()
}

fn question(constraints: Constraints) -> Question {
    Question {
        namespace: "default".into(),
        set: set(),
        prompt: PROMPT,
        hashes: None,
        choices: 1,
        migrated: false,
        expected_output: None,
        constraints,
    }
}

/// Idle aggregated workers of these weights.
fn idle(policy: PolicyKind, weights: &[f64]) -> Inputs {
    let roles = Roles { aggregated: true, ..Roles::default() };
    let candidates = weights.iter().zip(1..).map(|(weight, n)| {
        let worker = Worker { weight: *weight, ..worker(n, roles, Status::Ready, 0) };
        let load = Load::of(&worker, Some(&Report::default()), Pending::default(), Time::default());
        Candidate { worker: Arc::new(worker), load, matched: Blocks(0), warm_peers: Arc::default() }
    });
    let settings = Settings { policy, ..Settings::default() };
    let question = Arc::new(question(Constraints::default()));
    Inputs { question, candidates: candidates.collect(), topology: keys(), settings, seed: 0, turn: 0 }
}

/// How often each is chosen over these seeds.
fn taken(inputs: &Inputs, seeds: std::ops::Range<u64>) -> Vec<u64> {
    let mut taken = vec![0; inputs.candidates.len()];
    for seed in seeds {
        let choice = evaluate(&Inputs { seed, ..inputs.clone() }).choice;
        taken[choice.expect("somebody is idle").decode] += 1;
    }
    taken
}

#[test]
fn idle_workers_share_by_weight() {
    for policy in [PolicyKind::Kv, PolicyKind::LeastLoaded, PolicyKind::PowerOfTwo] {
        let taken = taken(&idle(policy, &[1.0, 1.0, 0.1]), 0..21_000);
        let near = |count: u64, share: u64| count.abs_diff(share) < share / 5;
        let power = policy == PolicyKind::PowerOfTwo;
        assert!(power || (near(taken[0], 10_000) && near(taken[2], 1_000)), "{policy:?}: {taken:?}");
        assert!(taken[2] < taken[0] / 4, "{policy:?}: {taken:?}");
    }
}

#[test]
fn a_temperature_softens_the_choice_by_the_difference_in_cost() {
    let mut inputs = idle(PolicyKind::Kv, &[1.0, 1.0]);
    let cost = |inputs: &Inputs, at: usize| {
        let decode = evaluate(inputs).decode;
        decode.iter().find(|scored| scored.at == at).expect("both are eligible").cost
    };
    inputs.candidates[0].matched = Blocks(20);
    let apart = cost(&inputs, 1) - cost(&inputs, 0);
    assert!(apart > 1.0);
    assert_eq!(taken(&inputs, 0..1_000), [1_000, 0]);
    // At a temperature of the difference: e : 1.
    inputs.settings.temperature = Millis(apart);
    let softened = taken(&inputs, 0..10_000);
    assert!((7_100..7_500).contains(&softened[0]), "{softened:?}");
    inputs.settings.temperature = Millis(1e6);
    let even = taken(&inputs, 0..10_000);
    assert!((4_800..5_200).contains(&even[0]), "{even:?}");
}

#[test]
fn power_of_two_takes_the_less_loaded_of_two() {
    let mut inputs = idle(PolicyKind::PowerOfTwo, &[1.0; 4]);
    for (candidate, requests) in inputs.candidates.iter_mut().zip(0..) {
        candidate.load.requests = requests;
    }
    // Of the six pairs three hold the first, two of the others the second, one the third, and none the last as the lesser.
    let taken = taken(&inputs, 0..6_000);
    let near = |count: u64, share: u64| count.abs_diff(share) < 200;
    assert!(near(taken[0], 3_000) && near(taken[1], 2_000) && near(taken[2], 1_000), "{taken:?}");
    assert_eq!(taken[3], 0);
}

#[test]
fn a_session_stays_until_its_worker_is_overloaded_and_moves_to_its_next() {
    let mut inputs = idle(PolicyKind::Session, &[1.0; 5]);
    let of = |inputs: &Inputs, session: u64| {
        let constraints = Constraints { session: Some(SessionKey(session)), ..Constraints::default() };
        let inputs = Inputs { question: Arc::new(question(constraints)), ..inputs.clone() };
        evaluate(&inputs).decode.iter().map(|scored| scored.at).collect::<Vec<_>>()
    };
    let homes: Vec<_> = (0..500).map(|session| of(&inputs, session)).collect();
    for home in 0..5 {
        let at_home = homes.iter().filter(|order| order[0] == home).count();
        assert!((60..140).contains(&at_home), "{at_home} of 500 sessions");
    }
    for (session, order) in homes.iter().enumerate() {
        inputs.seed += 1;
        assert_eq!(of(&inputs, session as u64), *order, "whatever the decision's seed");
    }
    // Far more than its share: its sessions go to the next in their orders, the others stay.
    inputs.candidates[0].load.requests = 10;
    for (session, order) in homes.iter().enumerate() {
        let expected = if order[0] == 0 { order[1] } else { order[0] };
        assert_eq!(of(&inputs, session as u64)[0], expected);
    }
    // Gone: as if it were overloaded.
    inputs.candidates.remove(0);
    for (session, order) in homes.iter().enumerate() {
        let expected = if order[0] == 0 { order[1] } else { order[0] };
        assert_eq!(of(&inputs, session as u64)[0] + 1, expected);
    }
}

#[test]
fn direct_takes_whom_the_request_pins_and_refuses_without() {
    let mut inputs = idle(PolicyKind::Direct, &[1.0; 3]);
    assert_eq!(evaluate(&inputs).choice, Err(Refusal::PinMissing));
    let pin_decode = Some(inputs.candidates[1].worker.rank);
    inputs.question = Arc::new(question(Constraints { pin_decode, ..Constraints::default() }));
    assert_eq!(evaluate(&inputs).choice, Ok(Choice { decode: 1, prefill: Vec::new() }));
}

#[test]
fn the_nearer_of_equal_prefill_workers_is_taken_and_a_warm_one_before_a_cold_one() {
    let of = |roles, n, zone: &str, host: &str| {
        let labels = [("zone".to_owned(), zone.to_owned()), ("host".to_owned(), host.to_owned())];
        let worker =
            Worker { labels: Arc::new(labels.into()), weight: 1.0, ..worker(n, roles, Status::Ready, 0) };
        let load = Load::of(&worker, Some(&Report::default()), Pending::default(), Time::default());
        Candidate { worker: Arc::new(worker), load, matched: Blocks(0), warm_peers: Arc::default() }
    };
    let prefill = Roles { prefill: true, ..Roles::default() };
    let decode = Roles { decode: true, ..Roles::default() };
    let mut inputs = idle(PolicyKind::Kv, &[]);
    let constraints = Constraints { prefill: PrefillChoice::Remote, ..Constraints::default() };
    inputs.question = Arc::new(question(constraints));
    // The same name of a host in two zones is two hosts.
    inputs.candidates = vec![
        of(decode, 1, "a", "1"),
        of(prefill, 2, "b", "1"),
        of(prefill, 3, "a", "2"),
        of(prefill, 4, "a", "1"),
    ];
    for seed in 0..50 {
        inputs.seed = seed;
        assert_eq!(evaluate(&inputs).choice, Ok(Choice { decode: 0, prefill: vec![3, 2, 1] }));
    }
    // Opening a connection takes longer than the way is long.
    inputs.candidates[0].warm_peers = Arc::new([InstanceId(2)]);
    assert_eq!(evaluate(&inputs).choice, Ok(Choice { decode: 0, prefill: vec![1, 3, 2] }));
}

#[test]
fn a_worker_that_is_overdue_costs_what_it_may_hide() {
    let mut inputs = idle(PolicyKind::Kv, &[1.0, 1.0]);
    inputs.candidates[0].load.age = Duration::from_secs(3);
    assert_eq!(taken(&inputs, 0..50), [0, 50]);
    // Its cache is worth more than that.
    inputs.candidates[0].matched = Blocks(39);
    inputs.candidates[0].load.age = Duration::from_millis(2_010);
    assert_eq!(taken(&inputs, 0..50), [50, 0]);
}

#[test]
fn revisions_pair_only_where_that_is_allowed() {
    let prefill = Roles { prefill: true, ..Roles::default() };
    let decode = Roles { decode: true, ..Roles::default() };
    let of = |roles, spec: &str, n| {
        let worker = Worker { spec_hash: spec.into(), ..worker(n, roles, Status::Ready, 0) };
        let load = Load::of(&worker, Some(&Report::default()), Pending::default(), Time::default());
        Candidate { worker: Arc::new(worker), load, matched: Blocks(0), warm_peers: Arc::default() }
    };
    let constraints = Constraints { prefill: PrefillChoice::Remote, ..Constraints::default() };
    let mut inputs = idle(PolicyKind::Kv, &[]);
    inputs.question = Arc::new(question(constraints));
    inputs.candidates = vec![of(decode, "a", 1), of(prefill, "b", 2)];
    assert_eq!(evaluate(&inputs).choice, Ok(Choice { decode: 0, prefill: Vec::new() }));
    inputs.settings.mix_revisions = true;
    assert_eq!(evaluate(&inputs).choice, Ok(Choice { decode: 0, prefill: vec![1] }));
    inputs.settings.mix_revisions = false;
    inputs.candidates[1] = of(prefill, "a", 2);
    assert_eq!(evaluate(&inputs).choice, Ok(Choice { decode: 0, prefill: vec![1] }));
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
        prop_assert_eq!(excluded(&inputs, Side::Decode, leader), None);
        let wishes = &inputs.question.constraints;
        let taken: Vec<_> = prefill.iter().chain([&decode]).map(|at| inputs.candidates[*at].worker.rank).collect();
        prop_assert!(taken.iter().all(|rank| !wishes.exclude.contains(rank)));
        prop_assert!(wishes.allow.is_empty() || taken.iter().all(|rank| wishes.allow.contains(rank)));
        prop_assert!(wishes.pin_decode.is_none_or(|pin| pin == leader.worker.rank));
        prop_assert!(prefill.len() <= 3);
        for at in &prefill {
            let helper = &inputs.candidates[*at];
            prop_assert_eq!(excluded(&inputs, Side::Prefill, helper), None);
            prop_assert_eq!(&helper.worker.compat_key, &leader.worker.compat_key);
            let one_revision = helper.worker.spec_hash == leader.worker.spec_hash;
            prop_assert!(one_revision || inputs.settings.mix_revisions);
            prop_assert_ne!(*at, decode);
        }
        let wish = inputs.question.constraints.prefill;
        let pinned = inputs.question.constraints.pin_prefill.is_some();
        prop_assert!(wish != PrefillChoice::Local || prefill.is_empty() || pinned);
        let may_prefill = inputs.settings.local_prefill || leader.worker.roles.aggregated;
        prop_assert!(!prefill.is_empty() || may_prefill);
    }

    #[test]
    fn a_refusal_means_that_nobody_could(inputs in inputs()) {
        let Err(refusal) = evaluate(&inputs).choice else { return Ok(()) };
        // A pinned prefill worker may be what is missing.
        if inputs.question.constraints.pin_prefill.is_some() {
            return Ok(());
        }
        let why = |candidate| excluded(&inputs, Side::Decode, candidate);
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
        let load = Load { requests, ..Load::of(&worker, None, Pending::default(), Time::default()) };
        // It runs 8 and queues 8, and as many migrated ones as it runs.
        prop_assert_eq!(load.full(&worker, false), requests >= 16);
        prop_assert_eq!(load.full(&worker, true), requests >= 24);
    }

    #[test]
    fn a_poor_fit_leaves_every_decision_as_the_priors_make_it(
        inputs in inputs(), models in prop::collection::vec((prop::array::uniform4(any::<f64>()), any::<u64>()), 8),
    ) {
        let mut fits = Fits::default();
        for (candidate, ([base, prefill_token, decode_row, position], observations)) in inputs.candidates.iter().zip(models) {
            fits.take(candidate.worker.rank, StepModel { base, prefill_token, decode_row, position, observations });
        }
        fits.refresh(inputs.candidates.iter().map(|it| &*it.worker), Time(Duration::from_secs(1)));
        let mut fitted = inputs.clone();
        for candidate in &mut fitted.candidates {
            let fit = fits.of(&candidate.worker);
            Arc::make_mut(&mut candidate.worker).fit = fit;
        }
        let poor = fitted.candidates.iter().all(|it| it.worker.fit == StepFit::default());
        let (by_priors, by_fits) = (evaluate(&inputs), evaluate(&fitted));
        prop_assert!(by_fits.decode.iter().chain(&by_fits.prefill).all(|scored| scored.cost.is_finite()));
        if poor {
            prop_assert_eq!(by_priors.choice, by_fits.choice);
            for (a, b) in by_priors.decode.iter().zip(&by_fits.decode) {
                prop_assert_eq!((a.at, a.cost.to_bits()), (b.at, b.cost.to_bits()));
            }
        }
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
        inputs.settings.temperature = Millis(0.0);
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
