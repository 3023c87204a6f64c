//! What watchers are told.

use armature_contracts::discovery::v1::{
    Component, DeregisterRequest, InstanceStatus, RegisterRequest, SetStatusRequest, WatchRequest,
};
use armature_contracts::error::Reason;
use armature_discovery::config::{Config, LimitsConfig};

use crate::fleet::{Client, Fleet, Lease, View, instance, reason, register, router};

#[tokio::test(start_paused = true)]
async fn a_watcher_resumes_from_its_revision_without_a_snapshot() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let client = server.client();
    let _first = Lease::open(&client, &router(1)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    let revision = view.revision;
    let _second = Lease::open(&client, &router(2)).await;
    client.clone().deregister(DeregisterRequest { instance_id: 1 }).await.unwrap();
    view.resume(&client).await;
    view.until_ids(&[2]).await;
    assert_eq!(view.snapshots, 1, "only the first one");
    assert_eq!(view.revision, revision + 2);
    let mut fresh = View::open(&client).await;
    fresh.until_ids(&[2]).await;
    assert_eq!((fresh.revision, fresh.epoch), (view.revision, view.epoch));
}

#[tokio::test(start_paused = true)]
async fn a_selector_keeps_namespaces_and_components_apart() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let mut other = router(1);
    other.namespace = "other".into();
    for it in [&other, &router(2), &instance(3, Component::Planner)] {
        register(&mut client, it).await.unwrap();
    }
    let request = |namespace: &str, components: Vec<Component>| WatchRequest {
        namespace: namespace.into(),
        components: components.into_iter().map(Into::into).collect(),
        ..WatchRequest::default()
    };
    for (request, ids) in [
        (request("other", vec![]), &[1][..]),
        (request("default", vec![]), &[2, 3][..]),
        (request("", vec![Component::Planner, Component::Worker]), &[3][..]),
        // A component of a newer version: nobody is one.
        (
            WatchRequest { components: vec![Component::Planner.into(), 99], ..WatchRequest::default() },
            &[3][..],
        ),
    ] {
        View::watch(&client, request).await.until_ids(ids).await;
    }
}

async fn flip(client: &mut Client, id: u64, times: usize) {
    for turn in 0..times {
        let status = if turn % 2 == 0 { InstanceStatus::Draining } else { InstanceStatus::Ready };
        client.set_status(SetStatusRequest { instance_id: id, status: status.into() }).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_gets_a_snapshot_and_the_others_are_not_held_up() {
    let limits = LimitsConfig { deltas: 8, ..LimitsConfig::default() };
    let server = Fleet::new().serve(Config { limits, ..Fleet::config("discovery") }).await;
    let mut client = server.client();
    // Large, so that the pipe to the one who does not read fills up.
    let mut large = router(1);
    large.labels = (0..64).map(|name| (format!("label-{name}"), "x".repeat(256))).collect();
    register(&mut client, &large).await.unwrap();
    let mut slow = View::open(&server.client()).await;
    slow.until_ids(&[1]).await;
    let mut quick = View::open(&client).await;
    quick.until_ids(&[1]).await;
    for _ in 0..100 {
        flip(&mut client, 1, 2).await;
        let (revision, seen) = (quick.revision, quick.snapshots);
        while quick.revision < revision + 2 && quick.snapshots == seen {
            assert!(quick.next().await);
        }
    }
    register(&mut client, &router(2)).await.unwrap();
    slow.until_ids(&[1, 2]).await;
    assert!(slow.snapshots > 1, "it was resynced");
    assert_eq!(slow.status(1), InstanceStatus::Ready);
}

#[tokio::test(start_paused = true)]
async fn watchers_are_bounded_and_one_that_leaves_makes_room() {
    let limits = LimitsConfig { watchers: 1, ..LimitsConfig::default() };
    let server = Fleet::new().serve(Config { limits, ..Fleet::config("discovery") }).await;
    let client = server.client();
    let mut only = View::open(&client).await;
    assert!(only.next().await);
    assert_eq!(reason(client.clone().watch(WatchRequest::default()).await), Reason::Overloaded);
    drop(only);
    while client.clone().watch(WatchRequest::default()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_registrations_are_refused_by_the_field() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let wrong = |change: fn(&mut armature_contracts::discovery::v1::Instance)| {
        let mut it = router(1);
        change(&mut it);
        it
    };
    for (it, field) in [
        (router(0), "instance.instance_id"),
        (wrong(|it| it.component = 99), "instance.component"),
        (wrong(|it| it.component = Component::Worker.into()), "instance.card_digest"),
        (wrong(|it| it.card_digest = vec![1].into()), "instance.card_digest"),
        (wrong(|it| it.addresses.clear()), "instance.addresses"),
        (wrong(|it| it.lease_epoch = u64::MAX), "instance.lease_epoch"),
        (wrong(|it| it.status = InstanceStatus::Suspect.into()), "instance.status"),
        (wrong(|it| it.namespace = "x".repeat(257)), "instance.namespace"),
        (
            wrong(|it| it.labels = (0..65).map(|n| (n.to_string(), String::new())).collect()),
            "instance.labels",
        ),
    ] {
        let fault = register(&mut client, &it).await.unwrap_err();
        assert_eq!(fault.reason, Reason::InvalidArgument);
        assert_eq!(fault.violations[0].0, field);
    }
    assert_eq!(reason(client.register(RegisterRequest::default()).await), Reason::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn streams_end_when_the_service_drains() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let client = server.client();
    let _lease = Lease::open(&client, &router(1)).await;
    let mut view = View::open(&client).await;
    view.until_ids(&[1]).await;
    server.stop().await;
    while view.next().await {}
    assert!(view.instances.contains_key(&1), "its end told nobody's loss");
}
