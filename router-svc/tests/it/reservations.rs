//! Idempotence, release, settlement.

use armature_contracts::discovery::v1::Role;
use armature_contracts::error::Reason;
use armature_contracts::router::v1::{Constraints, PrefillChoice};
use armature_contracts::worker::v1::Settlement;
use std::time::Duration;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, chain, decode_of, key, prefill_of, request, with};

#[tokio::test(start_paused = true)]
async fn a_repeated_route_gets_the_first_answer_and_books_nothing() {
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    rig.worker(FakeWorker::new(2), Role::Aggregated).await;
    let mut router = rig.router().await;
    let pin = Constraints { pin_decode: Some(worker.rank.into()), ..Default::default() };
    let first = router.route(with(request(1, 160, chain(1, 10)), pin)).await.unwrap();
    // Even with other words.
    for _ in 0..3 {
        assert_eq!(router.route(request(1, 320, vec![])).await.unwrap(), first);
    }
    router.sees(worker.rank, |view| view.unsettled_reservations == 1).await;

    worker.settle(key(1), Settlement::Admitted, None);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
    assert_eq!(router.route(request(1, 160, chain(1, 10))).await.unwrap(), first);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_is_remembered_also_before_the_route() {
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.release([key(1)]).await;
    assert_eq!(router.route(request(1, 160, vec![])).await.unwrap_err().reason, Reason::Released);

    router.route(request(2, 160, chain(1, 10))).await.unwrap();
    router.release([key(2)]).await;
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
    assert_eq!(router.route(request(2, 160, vec![])).await.unwrap_err().reason, Reason::Released);
    // Nobody computes those blocks: they are not expected any more.
    assert_eq!(router.route(request(3, 160, chain(1, 10))).await.unwrap().matched_blocks, 0);

    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(router.route(request(1, 160, vec![])).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_no_worker_names_ends_after_ten_seconds() {
    let mut rig = Rig::new().await;
    let worker = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.route(request(1, 160, vec![])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    router.sees(worker.rank, |view| view.unsettled_reservations == 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
}

#[tokio::test(start_paused = true)]
async fn the_decode_worker_ends_the_leg_of_a_prefill_worker_it_did_not_use() {
    let mut rig = Rig::new().await;
    let decode = rig.worker(FakeWorker::new(1), Role::Decode).await;
    let prefill = [FakeWorker::new(11), FakeWorker::new(12)];
    for worker in &prefill {
        rig.worker(worker.clone(), Role::Prefill).await;
    }
    let mut router = rig.router().await;
    let remote = Constraints { prefill: PrefillChoice::Remote.into(), ..Default::default() };
    let answer = router.route(with(request(1, 320, vec![]), remote)).await.unwrap();
    let [chosen, other] = prefill_of(&answer)[..] else { panic!("{answer:?}") };
    assert_eq!(decode_of(&answer), decode.id());
    let rank = |id: u64| FakeWorker::new(id).rank;
    router.sees(rank(chosen), |view| view.unsettled_reservations == 1).await;
    decode.settle(key(1), Settlement::Finished, Some(rank(other)));
    router.sees(rank(chosen), |view| view.unsettled_reservations == 0).await;
    router.sees(decode.rank, |view| view.unsettled_reservations == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_subscription_settles_what_was_missed() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    // Settled before the router subscribes, and again by the full list: that is no reservation of this router yet.
    worker.settle(key(1), Settlement::Admitted, None);
    rig.worker(worker.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.route(request(1, 160, vec![])).await.unwrap();
    router.sees(worker.rank, |view| view.unsettled_reservations == 1).await;
    worker.settle(key(1), Settlement::Refused, None);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
}
