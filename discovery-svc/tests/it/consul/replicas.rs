//! Several replicas over one Consul are one registry.

use armature_contracts::discovery::v1::{
    CampaignRequest, DeregisterRequest, GetArtifactRequest, GetCardRequest, InstanceStatus, ModelCard,
    PutArtifactRequest, SetStatusRequest,
};
use armature_contracts::error::Reason;
use armature_discovery::domain::instance::Digest;
use armature_test_backends::Consul;
use bytes::Bytes;
use prost::Message as _;

use super::replica::{config, entries, patiently, plain, serve, service, until};
use crate::fleet::{Fleet, Lease, View, card, put_card, reason, register, router, worker};

#[tokio::test]
async fn what_one_replica_is_told_every_replica_says() {
    let first = Consul::start(&[]);
    let second = Consul::join(&first, &[]);
    let fleet = Fleet::new();
    let a = serve(&fleet, service("a", config(&first.url(), "armature"))).await;
    let b = serve(&fleet, service("b", config(&second.url(), "armature"))).await;
    let (mut to_a, mut to_b) = (a.client(), b.client());
    let mut view = View::open(&to_b).await;

    // More than one value of Consul takes.
    let artifact: Bytes = (0..700_000u32).map(|it| (it % 251) as u8).collect::<Vec<_>>().into();
    let digest: Bytes = Digest::of(&artifact).0.to_vec().into();
    let put = PutArtifactRequest { digest: digest.clone(), content: artifact.clone() };
    to_a.put_artifact(put).await.unwrap();
    let model = ModelCard { tokenizer_digest: digest.clone(), ..card(16) };
    put_card(&mut to_a, &model).await;
    let _lease = Lease::open(&to_a, &worker(1, &model)).await;
    patiently("registered through A, seen at B", view.until_ids(&[1])).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
    let read = to_b.get_artifact(GetArtifactRequest { digest }).await.unwrap().into_inner();
    assert_eq!(read.content, artifact);
    let bytes = model.encode_to_vec();
    let get = GetCardRequest { digest: Digest::of(&bytes).0.to_vec().into() };
    assert_eq!(to_b.get_card(get).await.unwrap().into_inner().card, bytes);
    register(&mut to_b, &worker(2, &model)).await.expect("B fetches the card that A was given");
    put_card(&mut to_b, &card(32)).await;
    let other = register(&mut to_b, &worker(3, &card(32))).await.unwrap_err();
    assert_eq!(other.reason, Reason::BlockSizeMismatch, "with an instance that A has");

    let draining = SetStatusRequest { instance_id: 1, status: InstanceStatus::Draining.into() };
    assert_eq!(reason(to_b.set_status(draining).await), Reason::LeaseUnknown, "A has its lease");
    to_a.set_status(draining).await.unwrap();
    patiently("draining", view.until(|view| view[&1].status() == InstanceStatus::Draining)).await;

    let mut view = View::open(&to_a).await;
    patiently("both at A", view.until_ids(&[1, 2])).await;
    to_b.deregister(DeregisterRequest { instance_id: 1 }).await.unwrap();
    patiently("gone at A", view.until_ids(&[2])).await;
    for client in [&mut to_a, &mut to_b] {
        let fenced = register(client, &worker(1, &model)).await.unwrap_err();
        assert_eq!(fenced.reason, Reason::InstanceFenced);
    }
    let left = until(async || entries(&first, "armature-worker", "").await == 1);
    patiently("A takes its entry away", left).await;

    let campaign = |candidate_id| CampaignRequest {
        name: "planner of everything".into(),
        candidate_id,
        ttl: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
    };
    let leader = to_a.campaign(campaign(1)).await.unwrap().into_inner();
    let other = to_b.campaign(campaign(2)).await.unwrap().into_inner();
    assert!(leader.leader && !other.leader && other.leader_id == 1 && other.term == leader.term);
}

#[tokio::test]
async fn a_lease_moves_to_another_agent_and_nobody_touches_the_entry_of_another() {
    let first = Consul::start(&[]);
    let second = Consul::join(&first, &[]);
    let fleet = Fleet::new();
    let a = serve(&fleet, service("a", config(&first.url(), "armature"))).await;
    let b = serve(&fleet, service("b", config(&second.url(), "armature"))).await;
    let old = Lease::open(&a.client(), &router(1)).await;
    let mut view = View::open(&a.client()).await;
    patiently("at A", view.until_ids(&[1])).await;
    let mut moved = router(1);
    moved.lease_epoch = old.epoch();
    let before = old.epoch();
    drop(old);
    let new = Lease::open(&b.client(), &moved).await;
    assert!(new.epoch() > before);
    patiently("moved", view.until(|view| view[&1].lease_epoch == new.epoch())).await;
    let services = async |agent: &Consul| plain(agent, "/v1/agent/services").await.as_object().unwrap().len();
    patiently("A takes its own entry away", until(async || services(&first).await == 0)).await;
    assert_eq!(services(&second).await, 1);
    let one = until(async || entries(&first, "armature-router", "?passing").await == 1);
    patiently("one instance, one entry", one).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
}

#[tokio::test]
async fn replicas_on_one_agent_leave_each_other_alone_and_doubt_the_dead() {
    let agent = Consul::start(&[]);
    let fleet = Fleet::new();
    let a = serve(&fleet, service("a", config(&agent.url(), "armature"))).await;
    let b = serve(&fleet, service("b", config(&agent.url(), "armature"))).await;
    let at_a = Lease::open(&a.client(), &router(1)).await;
    let mut at_b = Lease::open(&b.client(), &router(2)).await;
    let mut view = View::open(&a.client()).await;
    patiently("both", view.until_ids(&[1, 2])).await;

    b.kill().await;
    let doubted = view.until(|view| view[&2].status() == InstanceStatus::Suspect);
    patiently("what B had is in doubt", doubted).await;
    assert_eq!(view.status(1), InstanceStatus::Ready);
    assert_eq!(entries(&agent, "armature-router", "?passing").await, 1);
    assert_eq!(entries(&agent, "armature-router", "").await, 2, "doubt keeps it");

    let before = at_b.epoch();
    let _b = serve(&fleet, service("b", config(&agent.url(), "armature"))).await;
    let again = patiently("back at B", at_b.registered_again()).await;
    assert!(again > before);
    patiently("no doubt", view.until(|view| view[&2].status() == InstanceStatus::Ready)).await;
    assert_eq!(view.instances.len(), 2);
    drop(at_a);
}
