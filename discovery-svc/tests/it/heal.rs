//! Restarts and several replicas.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1::{DeregisterRequest, InstanceStatus};
use armature_contracts::error::Reason;
use armature_discovery::adapters::memory::Memory;
use armature_discovery::config::Config;

use crate::fleet::{Fleet, Lease, View, pass, register, router};

const RECOVERED: u64 = 31;

fn memory() -> Memory {
    let settings = Config::default().validate().unwrap();
    Memory::new(settings.limits, 1, settings.changes)
}

#[tokio::test(start_paused = true)]
async fn an_emptied_registry_heals_and_no_watcher_loses_an_instance() {
    let fleet = Fleet::new();
    let server = fleet.serve(Fleet::config("discovery")).await;
    let client = server.client();
    let mut lease = Lease::open(&client, &router(1)).await;
    let dead = Lease::open(&client, &router(2)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1, 2]).await;
    let (before, epoch) = (lease.epoch(), view.epoch);

    server.kill().await;
    while view.next().await {}
    drop(dead);
    let server = fleet.serve(Fleet::config("discovery")).await;
    view.resume(&server.client()).await;
    assert!(lease.registered_again().await > before);
    view.until(|view| view[&1].lease_epoch > before).await;
    assert_eq!(view.instances.len(), 2, "no loss is reported while the new server recovers");
    assert_eq!((view.snapshots, view.epoch), (1, epoch));

    view.until_ids(&[1]).await;
    assert_eq!(view.snapshots, 2, "the loss came by the snapshot after the recovery");
    assert_ne!(view.epoch, epoch);
}

#[tokio::test(start_paused = true)]
async fn no_loss_is_reported_during_the_recovery() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let client = server.client();
    let lease = Lease::open(&client, &router(1)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    drop(lease);
    view.during(Duration::from_secs(29)).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
    view.until_ids(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_moves_between_replicas_and_its_epoch_grows() {
    let (fleet, backend) = (Fleet::new(), Arc::new(memory()));
    let first = fleet.replica("first", backend.clone()).await;
    let second = fleet.replica("second", backend.clone()).await;
    let old = Lease::open(&first.client(), &router(1)).await;
    let mut view = View::open(&first.client()).await;
    view.until_ids(&[1]).await;
    pass(RECOVERED).await;

    let mut moved = router(1);
    moved.lease_epoch = old.epoch();
    let before = old.epoch();
    drop(old);
    let new = Lease::open(&second.client(), &moved).await;
    assert!(new.epoch() > before);
    view.until(|view| view[&1].lease_epoch == new.epoch()).await;
    view.during(Duration::from_secs(60)).await;
    assert_eq!(view.status(1), InstanceStatus::Ready, "the first replica does not judge what the second has");

    let mut other = View::open(&second.client()).await;
    other.until_ids(&[1]).await;
    first.client().deregister(DeregisterRequest { instance_id: 1 }).await.unwrap();
    other.until_ids(&[]).await;
    let fenced = register(&mut second.client(), &router(1)).await.unwrap_err();
    assert_eq!(fenced.reason, Reason::InstanceFenced, "every replica fences it");
}

#[tokio::test(start_paused = true)]
async fn leases_of_a_dead_replica_are_doubted_by_the_others() {
    let (fleet, backend) = (Fleet::new(), Arc::new(memory()));
    let first = fleet.replica("first", backend.clone()).await;
    let second = fleet.replica("second", backend.clone()).await;
    let _lease = Lease::open(&first.client(), &router(1)).await;
    let mut view = View::open(&second.client()).await;
    view.until_ids(&[1]).await;
    pass(RECOVERED).await;
    first.kill().await;
    view.until(|view| view[&1].status() == InstanceStatus::Suspect).await;
    let _lease = Lease::open(&second.client(), &router(1)).await;
    view.until(|view| view[&1].status() == InstanceStatus::Ready).await;
}
