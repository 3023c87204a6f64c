//! When an instance is there, in doubt, and gone.

use std::time::Duration;

use armature_contracts::discovery::v1::{
    DeregisterRequest, InstanceStatus, KeepAliveRequest, SetStatusRequest,
};
use armature_contracts::error::Reason;
use tokio::time::Instant;

use crate::fleet::{Fleet, Lease, View, card, pass, put_card, reason, register, router, worker};

/// Longer than the recovery after a start.
const RECOVERED: u64 = 31;

#[tokio::test(start_paused = true)]
async fn a_broken_stream_is_a_loss_after_the_grace() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let client = server.client();
    let lease = Lease::open(&client, &router(1)).await;
    let _other = Lease::open(&client, &router(2)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1, 2]).await;
    pass(RECOVERED).await;
    let broken = Instant::now();
    drop(lease);
    view.until_ids(&[2]).await;
    let took = broken.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6), "{took:?} of virtual time");
    assert_eq!(register(&mut server.client(), &router(1)).await.unwrap_err().reason, Reason::InstanceFenced);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_comes_back_within_the_grace_is_no_loss() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let client = server.client();
    let lease = Lease::open(&client, &router(1)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    pass(RECOVERED).await;
    let epoch = lease.epoch();
    drop(lease);
    pass(4).await;
    let lease = Lease::open(&client, &router(1)).await;
    assert_eq!(lease.epoch(), epoch, "the same replica has it still");
    let revision = view.revision;
    view.during(Duration::from_secs(60)).await;
    assert_eq!(view.revision, revision, "neither the break nor the heartbeats caused a delta");
    assert!(view.instances.contains_key(&1));
}

#[tokio::test(start_paused = true)]
async fn without_a_stream_doubt_keeps_it_until_a_heartbeat_clears_it() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    pass(RECOVERED).await;
    register(&mut client, &router(1)).await.unwrap();
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
    let registered = Instant::now();
    view.until(|view| view[&1].status() == InstanceStatus::Suspect).await;
    assert!(registered.elapsed() >= Duration::from_secs(29));
    view.during(Duration::from_secs(300)).await;
    assert_eq!(view.status(1), InstanceStatus::Suspect, "doubt keeps it for ever");
    let _lease = Lease::open(&client, &router(1)).await;
    view.until(|view| view[&1].status() == InstanceStatus::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_deregistered_id_is_fenced_for_ten_minutes() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let lease = Lease::open(&client, &router(1)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    client.deregister(DeregisterRequest { instance_id: 1 }).await.unwrap();
    view.until_ids(&[]).await;
    drop(lease);
    pass(598).await;
    assert_eq!(register(&mut client, &router(1)).await.unwrap_err().reason, Reason::InstanceFenced);
    let status = SetStatusRequest { instance_id: 1, status: InstanceStatus::Ready.into() };
    assert_eq!(reason(client.set_status(status).await), Reason::InstanceFenced);
    pass(3).await;
    register(&mut client, &router(1)).await.unwrap();
    view.until_ids(&[1]).await;
}

#[tokio::test(start_paused = true)]
async fn statuses_are_published_and_nonsense_is_refused() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let _lease = Lease::open(&client, &router(1)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    for status in [InstanceStatus::Draining, InstanceStatus::Starting, InstanceStatus::Ready] {
        client.set_status(SetStatusRequest { instance_id: 1, status: status.into() }).await.unwrap();
        view.until(|view| view[&1].status() == status).await;
    }
    for (id, status, expected) in [
        (1, InstanceStatus::Suspect, Reason::InvalidArgument),
        (1, InstanceStatus::Unspecified, Reason::InvalidArgument),
        (0, InstanceStatus::Ready, Reason::InvalidArgument),
        (2, InstanceStatus::Ready, Reason::LeaseUnknown),
    ] {
        let request = SetStatusRequest { instance_id: id, status: status.into() };
        assert_eq!(reason(client.set_status(request).await), expected, "{id} {status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_draining_instance_in_doubt_stays_draining() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    register(&mut client, &router(1)).await.unwrap();
    client
        .set_status(SetStatusRequest { instance_id: 1, status: InstanceStatus::Draining.into() })
        .await
        .unwrap();
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    view.during(Duration::from_secs(120)).await;
    assert_eq!(view.status(1), InstanceStatus::Draining);
}

#[tokio::test(start_paused = true)]
async fn a_mass_loss_is_doubted_and_heals() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let card = card(16);
    put_card(&mut client, &card).await;
    let mut leases = Vec::new();
    for id in 1..=10 {
        leases.push(Lease::open(&client, &worker(id, &card)).await);
    }
    let mut view = View::open(&client).await;
    view.until(|view| view.len() == 10).await;
    pass(RECOVERED).await;
    let lost = leases.split_off(6);
    drop(lost);
    let suspects = |view: &std::collections::BTreeMap<u64, _>| {
        view.values()
            .filter(|it: &&armature_contracts::discovery::v1::Instance| {
                it.status() == InstanceStatus::Suspect
            })
            .count()
    };
    view.until(|view| suspects(view) == 4).await;
    assert_eq!(view.instances.len(), 10, "nobody left");
    for id in 7..=10 {
        leases.push(Lease::open(&client, &worker(id, &card)).await);
    }
    view.until(|view| suspects(view) == 0).await;
    pass(RECOVERED).await;
    drop(leases.pop());
    view.until(|view| view.len() == 9).await;
}

#[tokio::test(start_paused = true)]
async fn one_stream_keeps_one_lease() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let epoch = register(&mut client, &router(1)).await.unwrap();
    let beats = [
        KeepAliveRequest { instance_id: 1, lease_epoch: epoch + 1 },
        KeepAliveRequest { instance_id: 1, lease_epoch: epoch },
        KeepAliveRequest { instance_id: 2, lease_epoch: epoch },
    ];
    let mut answers = client.keep_alive(tokio_stream::iter(beats)).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().unwrap().register_again, "an epoch that was never granted");
    assert!(!answers.message().await.unwrap().unwrap().register_again);
    assert_eq!(reason(answers.message().await), Reason::InvalidArgument);
}
