//! Decisions with prefill and decode workers.

use armature_contracts::discovery::v1::{InstanceStatus, Role};
use armature_contracts::error::Reason;
use armature_contracts::kv::v1::KvLayout;
use armature_contracts::router::v1::{Constraints, PrefillChoice};
use armature_router::config::LocalPrefill;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, card, chain, decode_of, prefill_of, request, with};

const DECODE: u64 = 1;

/// One decode worker and `prefills` prefill workers, 11, 12, ...
async fn pools(prefills: u64) -> (Rig, FakeWorker, Vec<FakeWorker>) {
    let mut rig = Rig::new().await;
    let decode = rig.worker(FakeWorker::new(DECODE), Role::Decode).await;
    let mut prefill = Vec::new();
    for n in 0..prefills {
        prefill.push(rig.worker(FakeWorker::new(11 + n), Role::Prefill).await);
    }
    (rig, decode, prefill)
}

fn choice(prefill: PrefillChoice) -> Constraints {
    Constraints { prefill: prefill.into(), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn remote_prefill_is_taken_when_it_pays_and_only_then() {
    let (rig, decode, prefill) = pools(1).await;
    decode.store(&chain(7, 20));
    let mut router = rig.router().await;
    router.knows(&decode).await;
    router.knows(&prefill[0]).await;

    // Ten decoding requests are stalled by a local prefill: 320 ms there and 320 * 0.05 * 10 for them, against 320 ms and the transfer, which
    // takes twice as long from another zone.
    decode.load(|load| load.running = 10);
    router.sees(decode.rank, |view| view.running == 10).await;
    let answer = router.route(request(1, 320, chain(8, 20))).await.unwrap();
    assert_eq!((decode_of(&answer), prefill_of(&answer)), (DECODE, vec![11]));
    let why = router.explain(&answer.decision_id).await.unwrap();
    assert!(
        why.reasons.iter().any(|it| it.contains("326.40 ms with remote prefill, 480.00 ms without")),
        "{why:?}"
    );

    // What the decode worker has, it need not get.
    let answer = router.route(request(2, 325, chain(7, 20))).await.unwrap();
    assert_eq!((prefill_of(&answer), answer.matched_blocks), (vec![], 20));
}

#[tokio::test(start_paused = true)]
async fn the_clients_choice_comes_first() {
    let (rig, decode, _) = pools(1).await;
    decode.load(|load| load.running = 10);
    let mut router = rig.router().await;
    let local = router.route(with(request(1, 320, vec![]), choice(PrefillChoice::Local))).await.unwrap();
    assert!(prefill_of(&local).is_empty());
    decode.load(|load| load.running = 0);
    router.sees(decode.rank, |view| view.running == 0).await;
    let remote = router.route(with(request(2, 1, vec![]), choice(PrefillChoice::Remote))).await.unwrap();
    assert_eq!(prefill_of(&remote), [11]);
    // Nobody is there to do it.
    rig.discovery.set_status_of(11, InstanceStatus::Draining);
    router.sees(FakeWorker::new(11).rank, |view| view.status == "DRAINING").await;
    let alone = router.route(with(request(3, 320, vec![]), choice(PrefillChoice::Remote))).await.unwrap();
    assert!(prefill_of(&alone).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_answer_names_two_alternates_best_first() {
    let (rig, _, prefill) = pools(4).await;
    for (n, worker) in prefill.iter().enumerate() {
        worker.load(|load| load.uncomputed_prefill_tokens = 1_000 - 100 * n as u64);
    }
    let mut router = rig.router().await;
    for worker in &prefill {
        router.sees(worker.rank, |view| view.uncomputed_prefill_tokens > 0).await;
    }
    let answer = router.route(with(request(1, 320, vec![]), choice(PrefillChoice::Remote))).await.unwrap();
    assert_eq!(prefill_of(&answer), [14, 13, 12]);
}

#[tokio::test(start_paused = true)]
async fn only_pools_of_equal_form_exchange_kv() {
    let (mut rig, _, _) = pools(0).await;
    let layout = KvLayout { compat_key: vec![5; 32].into(), ..Default::default() };
    let other = armature_contracts::discovery::v1::ModelCard { layout: Some(layout), ..card(Role::Prefill) };
    rig.worker_with(FakeWorker::new(11), other).await;
    let mut router = rig.router().await;
    router.sees(FakeWorker::new(11).rank, |view| view.status == "READY").await;
    let answer = router.route(with(request(1, 320, vec![]), choice(PrefillChoice::Remote))).await.unwrap();
    assert_eq!((decode_of(&answer), prefill_of(&answer)), (DECODE, vec![]));
}

#[tokio::test(start_paused = true)]
async fn local_prefill_can_be_forbidden() {
    let (rig, _, _) = pools(1).await;
    let mut router = rig.router_with(|config| config.policy.local_prefill = LocalPrefill::Forbidden).await;
    let answer = router.route(request(1, 1, vec![])).await.unwrap();
    assert!(answer.local_prefill_forbidden);
    assert_eq!(prefill_of(&answer), [11]);
    rig.discovery.remove(11);
    while router.views().await.len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(router.route(request(2, 1, vec![])).await.unwrap_err().reason, Reason::NoWorkers);
}

#[tokio::test(start_paused = true)]
async fn a_prefill_worker_can_be_pinned() {
    let (rig, decode, prefill) = pools(3).await;
    decode.load(|load| load.running = 0);
    let mut router = rig.router().await;
    let pin = Constraints { pin_prefill: Some(prefill[1].rank.into()), ..Default::default() };
    let answer = router.route(with(request(1, 1, vec![]), pin)).await.unwrap();
    assert_eq!(prefill_of(&answer), [12]);
}
