//! Decisions over aggregated workers.

use std::collections::BTreeMap;

use armature_contracts::discovery::v1::Role;
use armature_contracts::error::{Fault, Reason, Scope};
use armature_contracts::kv::v1::BlockHashes;
use armature_contracts::router::v1::{Constraints, ExplainRequest, Overrides};
use armature_contracts::worker::v1::Settlement;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, chain, decode_of, key, patient, request, round_robin, with};

#[tokio::test(start_paused = true)]
async fn the_worker_that_has_the_prompt_wins() {
    let mut rig = Rig::new().await;
    let (a, b) = (FakeWorker::new(1), FakeWorker::new(2));
    a.store(&chain(7, 4));
    b.store(&chain(7, 20));
    rig.worker(a.clone(), Role::Aggregated).await;
    rig.worker(b.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&a).await;
    router.knows(&b).await;

    let answer = router.route(request(1, 330, chain(7, 20))).await.unwrap();
    assert_eq!((decode_of(&answer), answer.matched_blocks), (2, 20));
    assert_eq!(answer.decode.as_ref().unwrap().address, "mem:worker-2");
    assert!(answer.prefill.is_empty() && !answer.local_prefill_forbidden);

    // With a long queue there, computing it again is the shorter wait.
    b.load(|load| load.uncomputed_prefill_tokens = 5_000);
    router.sees(b.rank, |view| view.uncomputed_prefill_tokens == 5_000).await;
    let answer = router.route(request(2, 330, chain(7, 20))).await.unwrap();
    assert_eq!((decode_of(&answer), answer.matched_blocks), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn unsettled_reservations_prevent_herding() {
    let mut rig = Rig::new().await;
    for id in 1..=4 {
        rig.worker(FakeWorker::new(id), Role::Aggregated).await;
    }
    let mut router = rig.router().await;
    let mut taken = BTreeMap::<u64, u32>::new();
    // No report comes in between, and no two prompts have anything in common.
    for n in 0..20 {
        let answer = router.route(request(n, 160, chain(n as u64, 10))).await.unwrap();
        *taken.entry(decode_of(&answer)).or_default() += 1;
    }
    assert_eq!(taken, BTreeMap::from([(1, 5), (2, 5), (3, 5), (4, 5)]));
}

#[tokio::test(start_paused = true)]
async fn equal_prompts_that_arrive_together_go_together() {
    let mut rig = Rig::new().await;
    for id in 1..=3 {
        rig.worker(FakeWorker::new(id), Role::Aggregated).await;
    }
    let mut router = rig.router().await;
    let first = decode_of(&router.route(request(1, 3_200, chain(1, 200))).await.unwrap());
    // Admitted and so no longer in its queue, but its blocks are not published yet.
    let worker = FakeWorker::new(first);
    assert_eq!(worker.id(), first);
    let second = router.route(request(2, 3_200, chain(1, 200))).await.unwrap();
    assert_eq!((decode_of(&second), second.matched_blocks), (first, 200));
}

#[tokio::test(start_paused = true)]
async fn round_robin_takes_turns_whatever_they_have() {
    let mut rig = Rig::new().await;
    let a = FakeWorker::new(1);
    a.store(&chain(7, 20));
    rig.worker(a.clone(), Role::Aggregated).await;
    rig.worker(FakeWorker::new(2), Role::Aggregated).await;
    let mut router = rig.router_with(round_robin).await;
    router.knows(&a).await;
    let mut order = Vec::new();
    for n in 0..4 {
        order.push(decode_of(&router.route(request(n, 330, chain(7, 20))).await.unwrap()));
    }
    assert_eq!(order, [1, 2, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn pins_exclusions_and_labels_are_kept() {
    let mut rig = Rig::new().await;
    let workers: Vec<_> = (1..=3).map(FakeWorker::new).collect();
    for worker in &workers {
        rig.worker(worker.clone(), Role::Aggregated).await;
    }
    let rank = |n: usize| Some(workers[n - 1].rank.into());
    let mut router = rig.router().await;
    let pinned = Constraints { pin_decode: rank(2), ..Default::default() };
    assert_eq!(decode_of(&router.route(with(request(1, 40, vec![]), pinned)).await.unwrap()), 2);

    let exclude = vec![workers[0].rank.into(), workers[2].rank.into()];
    let excluded = Constraints { exclude: exclude.clone(), ..Default::default() };
    assert_eq!(decode_of(&router.route(with(request(2, 40, vec![]), excluded)).await.unwrap()), 2);

    let labelled = Constraints { labels: [("zone".into(), "z3".into())].into(), ..Default::default() };
    assert_eq!(decode_of(&router.route(with(request(3, 40, vec![]), labelled)).await.unwrap()), 3);

    let contradiction = Constraints { pin_decode: rank(1), exclude, ..Default::default() };
    let fault = router.route(with(request(4, 40, vec![]), contradiction)).await.unwrap_err();
    assert_eq!(fault.reason, Reason::InstanceNotEligible);
    assert!(fault.message.contains("excluded by the request"), "{}", fault.message);

    let stranger = Constraints { pin_decode: Some(FakeWorker::new(9).rank.into()), ..Default::default() };
    let fault = router.route(with(request(5, 40, vec![]), stranger)).await.unwrap_err();
    assert_eq!(fault.reason, Reason::InstanceNotEligible);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_typed() {
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut router = rig.router().await;

    let mut unknown = request(1, 40, vec![]);
    unknown.model_digest = vec![8; 32].into();
    let fault = router.route(unknown).await.unwrap_err();
    assert_eq!((fault.reason, fault.scope), (Reason::NoWorkers, Scope::AllWorkers));
    assert!(fault.retry_after.is_some());

    let fault = router.route(request(2, 100_000, vec![])).await.unwrap_err();
    assert_eq!((fault.reason, fault.scope), (Reason::ContextLengthExceeded, Scope::Request));

    let mut other = request(3, 40, vec![]);
    other.prompt = Some(BlockHashes { block_size: 32, ..other.prompt.unwrap() });
    assert_eq!(router.route(other).await.unwrap_err().reason, Reason::BlockSizeMismatch);

    let mut other = request(4, 40, vec![]);
    other.prompt = Some(BlockHashes { hash_scheme: "other".into(), ..other.prompt.unwrap() });
    assert_eq!(router.route(other).await.unwrap_err().reason, Reason::HashSchemeMismatch);

    worker.load(|load| (load.running, load.waiting, load.uncomputed_prefill_tokens) = (256, 256, 1500));
    router.sees(worker.rank, |view| view.running == 256).await;
    let fault = router.route(patient(request(5, 40, vec![]), 0)).await.unwrap_err();
    assert_eq!(fault.reason, Reason::AllWorkersBusy);
    // Less what has passed since the report.
    let left = std::time::Duration::from_millis(1_400)..=std::time::Duration::from_millis(1_500);
    assert!(fault.retry_after.is_some_and(|after| left.contains(&after)), "{fault:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_explained_from_its_inputs() {
    let mut rig = Rig::new().await;
    let (a, b) = (FakeWorker::new(1), FakeWorker::new(2));
    a.store(&chain(7, 10));
    rig.worker(a.clone(), Role::Aggregated).await;
    rig.worker(b.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&a).await;
    let answer = router.route(request(1, 165, chain(7, 10))).await.unwrap();

    // What changes afterwards is not part of it.
    a.load(|load| load.uncomputed_prefill_tokens = 9_000);
    router.sees(a.rank, |view| view.uncomputed_prefill_tokens == 9_000).await;
    a.settle(key(1), Settlement::Admitted, None);
    router.sees(a.rank, |view| view.unsettled_reservations == 0).await;

    let why = router.explain(&answer.decision_id).await.unwrap();
    assert_eq!((why.policy.as_str(), why.prompt_tokens), ("kv", 165));
    let [best, next] = &why.decode[..] else { panic!("{why:?}") };
    assert!(best.chosen && !next.chosen && best.cost_ms < next.cost_ms);
    assert_eq!((best.matched_blocks, next.matched_blocks), (10, 0));
    // One millisecond per token: 5 of 165 are left on the first.
    assert_eq!((best.terms_ms["prefill"], best.terms_ms["duplication"]), (5.0, 10.0));
    assert_eq!((next.terms_ms["prefill"], next.terms_ms["duplication"]), (165.0, 330.0));
    assert!((best.terms_ms.values().sum::<f64>() - best.cost_ms).abs() < 1e-9);
    assert!(why.reasons[1].contains("has 10 of 10 prompt blocks"), "{:?}", why.reasons);

    assert!(best.report_age.is_some() && why.otherwise.is_none());

    let unknown = router.explain(&format!("{:016x}-99", router.id)).await.unwrap_err();
    assert_eq!(unknown.reason, Reason::DecisionUnknown);
    assert_eq!(router.explain("nonsense").await.unwrap_err().reason, Reason::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn an_explanation_says_who_would_have_won_under_another_weight() {
    let mut rig = Rig::new().await;
    let (a, b) = (FakeWorker::new(1), FakeWorker::new(2));
    a.store(&chain(7, 10));
    rig.worker(a.clone(), Role::Aggregated).await;
    rig.worker(b.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&a).await;
    a.load(|load| load.uncomputed_prefill_tokens = 300);
    router.sees(a.rank, |view| view.uncomputed_prefill_tokens == 300).await;
    // 300 ms of queue and 3 * 5 ms against 3 * 165 ms.
    let answer = router.client.route(request(1, 165, chain(7, 10))).await.unwrap();
    let id = answer.metadata().get("x-armature-decision-id").unwrap().to_str().unwrap().to_owned();
    let answer = answer.into_inner();
    assert_eq!((decode_of(&answer), &answer.decision_id), (1, &id));
    let mut otherwise = async |weights: Overrides| {
        let request = ExplainRequest { decision_id: id.clone(), otherwise: Some(weights) };
        let answer = router.client.explain(request).await.map_err(|status| Fault::from_status(&status));
        answer.map(|answer| answer.into_inner().otherwise.unwrap().decode.unwrap().instance_id)
    };
    assert_eq!(otherwise(Overrides { kappa: Some(0.0), ..Default::default() }).await.unwrap(), 2);
    assert_eq!(otherwise(Overrides { kappa: Some(8.0), ..Default::default() }).await.unwrap(), 1);
    let wrong = otherwise(Overrides { eta: Some(f64::NAN), ..Default::default() }).await.unwrap_err();
    assert_eq!(wrong.violations[0].0, "otherwise.eta");

    // The same weight of the request's own decides.
    let mut request = request(2, 165, chain(7, 10));
    request.overrides = Some(Overrides { kappa: Some(0.0), ..Default::default() });
    assert_eq!(decode_of(&router.route(request).await.unwrap()), 2);
}
