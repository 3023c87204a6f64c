//! Workers without KV events: what they have is what this router has sent them.

use std::time::Duration;

use armature_contracts::discovery::v1::{ModelCard, Role};
use armature_contracts::worker::v1::Settlement;
use tokio::time::sleep;

use crate::fake_worker::FakeWorker;
use crate::rig::{Rig, card, chain, decode_of, key, request};

/// Longer than a prompt is expected for.
const PREDICTED: Duration = Duration::from_secs(31);

fn mute() -> ModelCard {
    ModelCard { capabilities: vec!["kv-events-none".into()], ..card(Role::Aggregated) }
}

#[tokio::test(start_paused = true)]
async fn what_a_worker_without_events_has_taken_is_believed_to_be_there() {
    let mut rig = Rig::new().await;
    let workers: Vec<_> = (1..=3).map(FakeWorker::new).collect();
    for worker in &workers {
        rig.worker_with(worker.clone(), mute()).await;
    }
    let mut router = rig.router().await;
    let first = decode_of(&router.route(request(1, 330, chain(1, 20))).await.unwrap());
    let worker = &workers[first as usize - 1];
    worker.settle(key(1), Settlement::Admitted, None);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
    sleep(PREDICTED).await;
    let again = router.route(request(2, 330, chain(1, 20))).await.unwrap();
    assert_eq!((decode_of(&again), again.matched_blocks), (first, 20));
    // Nobody asked it for events, and it does not count as doubted.
    assert!(workers.iter().all(|worker| worker.subscriptions().is_empty()));

    // A refused one is not there, and neither is one that was given up.
    let refused = decode_of(&router.route(request(3, 330, chain(2, 20))).await.unwrap());
    let worker = &workers[refused as usize - 1];
    worker.settle(key(3), Settlement::Refused, None);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
    let answer = router.route(request(4, 330, chain(2, 20))).await.unwrap();
    assert_eq!(answer.matched_blocks, 0);
    router.release([key(4)]).await;
    let answer = router.route(request(5, 330, chain(2, 20))).await.unwrap();
    assert_eq!(answer.matched_blocks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_may_be_set() {
    let mut rig = Rig::new().await;
    let worker = FakeWorker::new(1);
    rig.worker_with(worker.clone(), mute()).await;
    let mut router = rig.router_with(|config| config.index.approximate_ttl_ms = 120_000).await;
    router.route(request(1, 330, chain(1, 20))).await.unwrap();
    worker.settle(key(1), Settlement::Admitted, None);
    router.sees(worker.rank, |view| view.unsettled_reservations == 0).await;
    sleep(Duration::from_secs(100)).await;
    let answer = router.route(request(2, 330, chain(1, 20))).await.unwrap();
    assert_eq!(answer.matched_blocks, 20);
    router.release([key(2)]).await;
    sleep(Duration::from_secs(21)).await;
    let answer = router.route(request(3, 330, chain(1, 20))).await.unwrap();
    assert_eq!(answer.matched_blocks, 0);
}
