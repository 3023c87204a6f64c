//! The router's view of the workers' blocks, and what brings it back after a doubt.

use armature_contracts::discovery::v1::Role;
use armature_router::config::IndexKind;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, chain, decode_of, key, request};

#[tokio::test(start_paused = true)]
async fn the_view_follows_the_worker() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    worker.store(&chain(7, 8));
    rig.worker(worker.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&worker).await;
    worker.store(&chain(7, 12));
    router.knows(&worker).await;
    assert_eq!(router.route(request(1, 200, chain(7, 12))).await.unwrap().matched_blocks, 12);
    worker.evict(&chain(7, 12)[6..]);
    router.knows(&worker).await;
    assert_eq!(worker.snapshots(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hole_and_a_wrong_digest_are_healed_by_a_snapshot() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    worker.store(&chain(7, 4));
    rig.worker(worker.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&worker).await;

    worker.store_unseen(&chain(7, 6));
    worker.store(&chain(7, 8));
    router.sees(worker.rank, |view| view.index_known && view.indexed_blocks == 8).await;
    assert_eq!(worker.snapshots(), 2);

    worker.store_with_wrong_digest(&chain(7, 9));
    router.sees(worker.rank, |view| view.index_known && view.indexed_blocks == 9).await;
    assert_eq!((worker.snapshots(), worker.subscriptions()), (3, vec![0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_rank_in_doubt_counts_for_nothing_until_its_snapshot() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    worker.store(&chain(7, 4));
    rig.worker(worker.clone(), Role::Aggregated).await;
    let mut router = rig
        .router_with(|config| {
            // The snapshot is late, so that there is something to see.
            config.feed.snapshot_interval_ms = 500;
            config.index.predicted_entries = 0;
        })
        .await;
    router.knows(&worker).await;
    worker.store_with_wrong_digest(&chain(7, 5));
    router.sees(worker.rank, |view| !view.index_known && view.indexed_blocks == 0).await;
    assert_eq!(router.route(request(1, 100, chain(7, 4))).await.unwrap().matched_blocks, 0);
    router.knows(&worker).await;
    assert_eq!(router.route(request(2, 100, chain(7, 4))).await.unwrap().matched_blocks, 4);
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_goes_on_where_it_was() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    worker.store(&chain(7, 4));
    rig.worker(worker.clone(), Role::Aggregated).await;
    let mut router = rig.router().await;
    router.knows(&worker).await;
    worker.cut_kv();
    while worker.subscriptions().len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    worker.store(&chain(7, 5));
    router.knows(&worker).await;
    assert_eq!((worker.snapshots(), worker.subscriptions()), (1, vec![0, 2]));
}

#[tokio::test(start_paused = true)]
async fn forgetting_is_bounded_and_keeps_prefixes() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    rig.worker(worker.clone(), Role::Aggregated).await;
    let mut router = rig
        .router_with(|config| {
            config.index.kind = IndexKind::Map;
            config.index.max_entries = 16;
            config.index.predicted_entries = 0;
        })
        .await;
    router.knows(&worker).await;
    worker.store(&chain(7, 20));
    router.sees(worker.rank, |view| view.reported_blocks == 20 && view.indexed_blocks == 16).await;
    assert_eq!(router.route(request(1, 400, chain(7, 20))).await.unwrap().matched_blocks, 16);
    assert_eq!(worker.snapshots(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hole_is_found_before_a_request_goes_there() {
    let mut rig = Rig::new().await;
    let (holed, shorter) = (FakeWorker::new(1), FakeWorker::new(2));
    holed.store(&chain(7, 12));
    shorter.store(&chain(7, 8));
    rig.worker(holed.clone(), Role::Aggregated).await;
    rig.worker(shorter.clone(), Role::Aggregated).await;
    let mut router = rig.router_with(|config| config.index.predicted_entries = 0).await;
    router.knows(&holed).await;
    router.knows(&shorter).await;
    let answer = router.route(request(1, 200, chain(7, 12))).await.unwrap();
    assert_eq!((decode_of(&answer), answer.matched_blocks), (1, 12));
    router.release([key(1)]).await;

    // The blocks on both sides of it have the same holders: a find does not look at it.
    holed.evict(&chain(7, 12)[3..4]);
    router.knows(&holed).await;
    let answer = router.route(request(2, 200, chain(7, 12))).await.unwrap();
    assert_eq!((decode_of(&answer), answer.matched_blocks), (2, 8));
}
