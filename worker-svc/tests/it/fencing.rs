//! An incarnation that is announced gone while it lives: the process goes on as another one.

use armature_contracts::discovery::v1::InstanceStatus;
use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::InstanceId;
use armature_contracts::inference::v1::FinishReason;
use armature_contracts::worker::v1 as wire;
use armature_svc_kit::channel::Channel;
use armature_svc_kit::discovery_client::health_probe;
use armature_worker::identity::Role;
use std::sync::Arc;
use tokio_stream::StreamExt;
use wire::generate_response::Event;
use wire::watch_kv_response::Event as KvEvent;
use wire::worker_service_client::WorkerServiceClient;

use crate::harness::{Fleet, Node, TRANSPORTS, disaggregate, prompt, request, wait_until};
use crate::registry::Registry;

/// Announces the node gone and waits for what it is then; gives the old and the new id.
async fn fence(registry: &Registry, node: &Node) -> (InstanceId, InstanceId) {
    let old = node.rank().instance;
    registry.announce_gone(old);
    let mut instance = node.running.instance.clone();
    let new = *instance.wait_for(|id| *id != old).await.unwrap();
    (old, new)
}

/// Reads a stream of KV events until `blocks` blocks are known: batches seen, and the set.
async fn blocks_of(
    client: &WorkerServiceClient<Channel>,
    from_batch: u64,
    blocks: usize,
) -> (Vec<u64>, Vec<u64>, InstanceId) {
    let asked = wire::WatchKvRequest { dp_rank: 0, from_batch };
    let mut events = client.clone().watch_kv(asked).await.unwrap().into_inner();
    let (mut batches, mut hashes, mut told_by) = (Vec::new(), Vec::new(), InstanceId(0));
    while hashes.len() < blocks {
        match events.next().await.unwrap().unwrap().event.unwrap() {
            KvEvent::Snapshot(chunk) => {
                told_by = InstanceId(chunk.worker.unwrap().instance_id);
                hashes.extend(chunk.blocks.iter().flat_map(|blocks| blocks.sequence_hashes.clone()));
            }
            KvEvent::Batch(batch) => {
                told_by = InstanceId(batch.worker.unwrap().instance_id);
                batches.push(batch.batch);
                for event in batch.events {
                    let Some(armature_contracts::kv::v1::kv_event::Event::Stored(stored)) = event.event
                    else {
                        panic!("nothing is removed");
                    };
                    hashes.extend(stored.sequence_hashes);
                }
                assert_eq!(batch.count as usize, hashes.len());
            }
        }
    }
    hashes.sort_unstable();
    (batches, hashes, told_by)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_announced_gone_gives_its_streams_up_and_serves_as_another_incarnation() {
    let mut fleet = Fleet::sim();
    let (registry, _serving) = Registry::serve(&fleet.network).await;
    let node = fleet.start(Role::Aggregated, |config| config.sim.speedup = 1.0).await;
    let before = registry.registered(node.rank().instance).await;
    node.generate(request(&node, &prompt(64, 1), 2, 1)).await.unwrap();
    let (_, cached, told_by) = blocks_of(&node.client, 0, 4).await;
    assert_eq!(told_by, node.rank().instance);

    let mut states =
        node.client.clone().watch_state(wire::WatchStateRequest::default()).await.unwrap().into_inner();
    let events = wire::WatchKvRequest { dp_rank: 0, from_batch: 0 };
    let mut events = node.client.clone().watch_kv(events).await.unwrap().into_inner();
    let asked = request(&node, &prompt(30, 2), 3000, 2);
    let mut stream = node.client.clone().generate(asked).await.unwrap().into_inner();
    let late = request(&node, &prompt(30, 3), 4, 1);
    stream.next().await.unwrap().unwrap();

    let (old, new) = fence(&registry, &node).await;

    // The stream: every choice is to be continued elsewhere, and its account is there.
    let (mut ends, mut finished) = (Vec::new(), false);
    while let Some(answer) = stream.next().await {
        match answer.unwrap().event.unwrap() {
            Event::Started(_) => {}
            Event::Delta(delta) if delta.finish_reason() == FinishReason::Unspecified => {}
            Event::Delta(delta) => ends.push((delta.choice, delta.finish_reason())),
            Event::Finished(_) => finished = true,
        }
    }
    ends.sort_unstable_by_key(|(choice, _)| *choice);
    assert_eq!(ends, [(0, FinishReason::Migrate), (1, FinishReason::Migrate)]);
    assert!(finished);
    // Feeds end with their incarnation, and say nothing of the next one.
    while let Some(report) = states.next().await {
        assert_eq!(report.unwrap().instance_id, old.0);
    }
    while events.next().await.is_some() {}

    let after = registry.registered(new).await;
    assert_eq!(after.status(), InstanceStatus::Ready);
    assert_eq!((after.addresses, after.card_digest), (before.addresses.clone(), before.card_digest.clone()));
    let status = node.generate(late).await.unwrap_err();
    assert_eq!(Fault::from_status(&status).reason, Reason::InstanceFenced);

    // The cache is what it was, told anew from batch 1.
    let again = node.generate(request(&node, &prompt(64, 1), 2, 1)).await.unwrap();
    assert_eq!(again.usage.cached_tokens, 48);
    let (batches, told, told_by) = blocks_of(&node.client, 1, 4).await;
    assert_eq!(batches[0], 1);
    assert_eq!(told_by, new);
    assert!(cached.iter().all(|hash| told.contains(hash)), "{cached:?} in {told:?}");

    // Probes know who is dead.
    let probe = health_probe(node.channels());
    let old = armature_svc_kit::discovery_client::Instance::from(before);
    assert!(!probe(Arc::new(old.clone())).await);
    assert!(probe(Arc::new(armature_svc_kit::discovery_client::Instance { id: new, ..old })).await);
    assert_eq!(node.metric("armature_worker_fenced_total").await, 1.0);
    node.quiet().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_offs_with_an_incarnation_that_is_announced_gone_are_aborted_on_both_sides() {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::sim();
        let (registry, _serving) = Registry::serve(&fleet.network).await;
        // A step takes seconds: the hand-off is under way for as long as the test wants.
        let slow = |c: &mut armature_worker::config::Config| {
            c.transports = vec![transport];
            c.sim.speedup = 0.01;
        };
        let slow = fleet.start(Role::Prefill, slow).await;
        let fast = fleet.start(Role::Prefill, |c| c.transports = vec![transport]).await;
        let d = fleet.start(Role::Decode, |c| c.transports = vec![transport]).await;
        registry.registered(slow.rank().instance).await;
        registry.registered(d.rank().instance).await;

        // The prefill worker: the next one takes its place.
        let mut asked = request(&d, &prompt(900, 1), 4, 1);
        disaggregate(&mut asked, &[&slow, &fast]);
        let (output, _) = tokio::join!(d.generate(asked), async {
            wait_until("the prefill has begun", async || {
                d.metric("armature_worker_kv_blocks_active").await > 0.0
            })
            .await;
            fence(&registry, &slow).await
        });
        assert_eq!(output.unwrap().prefilled_by, Some(fast.rank().instance.0), "{transport:?}");
        slow.quiet().await;

        // The decode worker: the client goes on elsewhere.
        let mut asked = request(&d, &prompt(900, 2), 4, 1);
        disaggregate(&mut asked, &[&slow]);
        let (output, _) = tokio::join!(d.generate(asked), async {
            wait_until("the prefill has begun", async || {
                d.metric("armature_worker_kv_blocks_active").await > 0.0
            })
            .await;
            fence(&registry, &d).await
        });
        assert_eq!(output.unwrap().finish, [FinishReason::Migrate as i32], "{transport:?}");
        d.quiet().await;
        slow.quiet().await;
    }
}
