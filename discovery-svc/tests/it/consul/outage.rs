//! Consul away, frozen, and back empty: no consumer sees anything of it.

use std::time::Duration;

use armature_contracts::discovery::v1::{
    CampaignRequest, DeregisterRequest, InstanceStatus, ModelCard, PutArtifactRequest,
};
use armature_contracts::error::Reason;
use armature_discovery::domain::instance::Digest;
use armature_test_backends::Consul;
use bytes::Bytes;
use tokio::time::Instant;

use super::replica::{PATIENCE, config, entries, patiently, plain, serve, service, until};
use crate::fleet::{Fleet, Lease, Server, View, card, put_card, reason, register, router, worker};
use crate::operations::page;

const FLEET: u64 = 20;

/// Everything that a watcher is told for a while leaves every instance of the fleet where it is, READY.
async fn nobody_leaves(view: &mut View, span: Duration) {
    let end = Instant::now() + span;
    while let Ok(true) = tokio::time::timeout_at(end, view.next()).await {
        for id in 1..=FLEET {
            let status = view.instances.get(&id).map(|it| it.status());
            assert_eq!(status, Some(InstanceStatus::Ready), "instance {id}");
        }
    }
}

async fn whole_fleet(server: &Server) -> View {
    let mut view = View::open(&server.client()).await;
    patiently("the whole fleet", view.until(|view| view.len() == FLEET as usize)).await;
    view
}

async fn away(fleet: &Fleet, server: &Server) {
    let told = until(async || {
        page(&fleet.network, server.admin(), "/metrics")
            .await
            .contains("armature_discovery_consul_unreachable 1")
    });
    patiently("Consul is missed", told).await;
}

#[tokio::test]
async fn a_consul_that_comes_back_empty_is_filled_again_and_nobody_notices() {
    let mut consul = Consul::start(&[]);
    let fleet = Fleet::new();
    let a = serve(&fleet, service("a", config(&consul.url(), "armature"))).await;
    let b = serve(&fleet, service("b", config(&consul.url(), "armature"))).await;
    let tokenizer = Bytes::from_static(b"a small tokenizer");
    let digest: Bytes = Digest::of(&tokenizer).0.to_vec().into();
    let put = PutArtifactRequest { digest: digest.clone(), content: tokenizer };
    a.client().put_artifact(put).await.unwrap();
    let model = ModelCard { tokenizer_digest: digest, ..card(16) };
    put_card(&mut a.client(), &model).await;
    let mut leases = Vec::new();
    for id in 1..=FLEET {
        let server = if id % 2 == 0 { &a } else { &b };
        leases.push(Lease::open(&server.client(), &worker(id, &model)).await);
    }
    let epochs: Vec<u64> = leases.iter().map(Lease::epoch).collect();
    a.client().deregister(DeregisterRequest { instance_id: 99 }).await.unwrap();
    let (mut at_a, mut at_b) = (whole_fleet(&a).await, whole_fleet(&b).await);

    let campaign = |candidate_id| CampaignRequest {
        name: "planner".into(),
        candidate_id,
        ttl: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
    };
    let leader = a.client().campaign(campaign(1)).await.unwrap().into_inner();
    assert!(leader.leader);

    consul.kill();
    away(&fleet, &a).await;
    away(&fleet, &b).await;
    assert_eq!(reason(a.client().campaign(campaign(1)).await), Reason::BackendUnreachable);
    // Longer than the TTL.
    tokio::join!(
        nobody_leaves(&mut at_a, Duration::from_secs(8)),
        nobody_leaves(&mut at_b, Duration::from_secs(8)),
    );
    register(&mut a.client(), &router(50)).await.expect("accepted, to be written later");

    consul.revive();
    let back = Instant::now();
    let filled = until(async || {
        entries(&consul, "armature-worker", "?passing").await == FLEET as usize
            && entries(&consul, "armature-router", "?passing").await == 1
    });
    tokio::select! {
        () = patiently("everything is registered again", filled) => {}
        () = nobody_leaves(&mut at_a, PATIENCE * 10) => unreachable!("watches for ever"),
    }
    eprintln!("registered again {:?} after Consul's return", back.elapsed());
    nobody_leaves(&mut at_b, Duration::from_secs(8)).await;
    assert_eq!(
        leases.iter().map(Lease::epoch).collect::<Vec<_>>(),
        epochs,
        "no instance was asked to register again"
    );

    let next = b.client().campaign(campaign(2)).await.unwrap().into_inner();
    assert!(next.leader && next.term > leader.term, "terms grow over lost keys");

    let keys = async || plain(&consul, "/v1/kv/armature/?keys").await.as_array().unwrap().len();
    // Sizes and chunks of card and tokenizer, the fence, and the leader.
    patiently("cards and fences are back", until(async || keys().await == 6)).await;
    let c = serve(&fleet, service("c", config(&consul.url(), "armature"))).await;
    let mut view = View::open(&c.client()).await;
    patiently("a new replica sees all", view.until(|view| view.len() == FLEET as usize + 1)).await;
    let fenced = register(&mut c.client(), &router(99)).await.unwrap_err();
    assert_eq!(fenced.reason, Reason::InstanceFenced);
    register(&mut c.client(), &worker(60, &model)).await.expect("the card is there");
}

#[tokio::test]
async fn a_frozen_consul_is_missed_and_nobody_notices() {
    let consul = Consul::start(&[]);
    let fleet = Fleet::new();
    let a = serve(&fleet, service("a", config(&consul.url(), "armature"))).await;
    let mut leases = Vec::new();
    for id in 1..=FLEET {
        leases.push(Lease::open(&a.client(), &router(id)).await);
    }
    let mut view = whole_fleet(&a).await;
    consul.freeze();
    // Nothing thaws it before the answer.
    let mut client = a.client();
    patiently("an answer", register(&mut client, &router(50)))
        .await
        .expect("accepted while Consul does not answer");
    away(&fleet, &a).await;
    nobody_leaves(&mut view, Duration::from_secs(8)).await;
    consul.thaw();
    let filled = until(async || entries(&consul, "armature-router", "?passing").await == FLEET as usize + 1);
    tokio::select! {
        () = patiently("all leases pass again", filled) => {}
        () = nobody_leaves(&mut view, PATIENCE * 10) => unreachable!("watches for ever"),
    }
}

#[tokio::test]
async fn an_agent_that_loses_its_entries_is_filled_again() {
    let server = Consul::start(&[]);
    // The same machine after its restart.
    let mut agent = Consul::join(&server, &["-node-id", "6a3f0c8e-52c5-4f0b-9a55-7d4a4be31c01"]);
    let fleet = Fleet::new();
    let a = serve(&fleet, service("a", config(&agent.url(), "armature"))).await;
    let b = serve(&fleet, service("b", config(&server.url(), "armature"))).await;
    let mut leases = Vec::new();
    for id in 1..=FLEET {
        leases.push(Lease::open(&a.client(), &router(id)).await);
    }
    let mut view = whole_fleet(&b).await;
    agent.restart();
    let filled = until(async || {
        plain(&agent, "/v1/agent/services").await.as_object().unwrap().len() == FLEET as usize
    });
    tokio::select! {
        () = patiently("the agent has them again", filled) => {}
        () = nobody_leaves(&mut view, PATIENCE * 10) => unreachable!("watches for ever"),
    }
    nobody_leaves(&mut view, Duration::from_secs(8)).await;
}
