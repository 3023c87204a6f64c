//! Workers that come, drain, fall into doubt, restart and go.

use armature_contracts::discovery::v1::{InstanceStatus, Role};
use armature_contracts::error::Reason;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, card, chain, decode_of, request};

#[tokio::test(start_paused = true)]
async fn draining_workers_get_nothing_and_keep_their_blocks() {
    let mut rig = Rig::new().await;
    let (a, b) = (FakeWorker::new(1), FakeWorker::new(2));
    a.store(&chain(7, 10));
    rig.worker(a.clone(), Role::Aggregated).await;
    rig.worker(b.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&a).await;
    // By its own word, before discovery has it.
    a.drain();
    router.sees(a.rank, |view| view.status == "DRAINING" && view.indexed_blocks == 10).await;
    assert_eq!(decode_of(&router.route(request(1, 165, chain(7, 10))).await.unwrap()), 2);
    rig.discovery.set_status_of(2, InstanceStatus::Draining);
    router.sees(b.rank, |view| view.status == "DRAINING").await;
    assert_eq!(router.route(request(2, 165, vec![])).await.unwrap_err().reason, Reason::NoWorkers);
}

#[tokio::test(start_paused = true)]
async fn doubt_ranks_last_and_does_not_exclude() {
    let mut rig = Rig::new().await;
    let (a, b) = (FakeWorker::new(1), FakeWorker::new(2));
    a.store(&chain(7, 10));
    rig.worker(a.clone(), Role::Aggregated).await;
    rig.worker(b.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&a).await;
    rig.discovery.set_status_of(1, InstanceStatus::Suspect);
    router.sees(a.rank, |view| view.status == "SUSPECT").await;
    assert_eq!(decode_of(&router.route(request(1, 165, chain(7, 10))).await.unwrap()), 2);
    rig.discovery.remove(2);
    while router.views().await.len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(decode_of(&router.route(request(2, 165, chain(7, 10))).await.unwrap()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_worker_is_another_one() {
    let mut rig = Rig::new().await;
    let old = FakeWorker::new(1);
    old.store(&chain(7, 10));
    let (_, server) = rig.worker_with(old.clone(), card(Role::Aggregated)).await;
    let mut router = rig.router().await;
    router.knows(&old).await;
    router.route(request(1, 165, chain(7, 10))).await.unwrap();

    server.abort();
    rig.discovery.remove(1);
    let new = rig.worker(FakeWorker::new(2), Role::Aggregated).await;
    router.sees(new.rank, |view| view.index_known).await;
    let views = router.views().await;
    assert_eq!(views.len(), 1, "{views:?}");
    assert_eq!((views[0].indexed_blocks, views[0].unsettled_reservations), (0, 0));
    let answer = router.route(request(2, 165, chain(7, 10))).await.unwrap();
    assert_eq!((decode_of(&answer), answer.matched_blocks), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_has_not_reported_comes_after_those_that_have() {
    let mut rig = Rig::new().await;
    let busy = rig.worker(FakeWorker::new(1), Role::Aggregated).await;
    let mut router = rig.router().await;
    busy.load(|load| load.uncomputed_prefill_tokens = 9_000);
    let silent = rig.worker(FakeWorker::new(2).silent(), Role::Aggregated).await;
    router.sees(busy.rank, |view| view.uncomputed_prefill_tokens == 9_000).await;
    router.sees(silent.rank, |view| view.report_age.is_none()).await;
    assert_eq!(decode_of(&router.route(request(1, 165, vec![])).await.unwrap()), 1);
    rig.discovery.remove(1);
    while router.views().await.len() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(decode_of(&router.route(request(2, 165, vec![])).await.unwrap()), 2);
}
