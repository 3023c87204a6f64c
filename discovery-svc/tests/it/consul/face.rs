//! What a plain user of Consul sees: names, tags, health, DNS.

use std::time::Duration;

use armature_contracts::discovery::v1::{InstanceStatus, ModelCard, Role, SetStatusRequest};
use armature_test_backends::Consul;
use serde_json::{Value, json};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, TYPE};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::replica::{config, entries, patiently, plain, serve, service, until};
use crate::fleet::{Fleet, Lease, card, put_card, worker};

/// The ports that Consul's DNS gives for a name.
async fn srv(agent: &Consul, name: &str) -> Vec<u16> {
    let mut query = Packet::new_query(7);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).unwrap();
    query.questions.push(Question::new(name, TYPE::SRV.into(), CLASS::IN.into(), false));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(("127.0.0.1", agent.dns_port())).await.unwrap();
    let mut answer = [0; 4096];
    loop {
        socket.send(&query.build_bytes_vec().unwrap()).await.unwrap();
        // A datagram may be lost.
        let Ok(length) = timeout(Duration::from_secs(2), socket.recv(&mut answer)).await else { continue };
        let packet = Packet::parse(&answer[..length.unwrap()]).unwrap();
        let port = |it: &simple_dns::ResourceRecord<'_>| match &it.rdata {
            RData::SRV(srv) => Some(srv.port),
            _ => None,
        };
        return packet.answers.iter().filter_map(port).collect();
    }
}

#[tokio::test]
async fn a_plain_user_of_consul_sees_what_they_expect() {
    let agent = Consul::start(&[]);
    let fleet = Fleet::new();
    let server = serve(&fleet, service("a", config(&agent.url(), "armature"))).await;
    let mut client = server.client();
    let model = ModelCard { served_name: "Smol LM.2".into(), roles: vec![Role::Decode.into()], ..card(16) };
    put_card(&mut client, &model).await;
    let mut instance = worker(0xa1, &model);
    instance.namespace = "prod".into();
    instance.addresses = [("grpc".to_owned(), "127.0.0.1:7500".to_owned())].into();
    instance.status = InstanceStatus::Starting.into();
    instance.labels = [("zone".to_owned(), "ü".repeat(120))].into();
    let lease = Lease::open(&client, &instance).await;

    let service = async || plain(&agent, "/v1/health/service/armature-worker").await[0].clone();
    patiently("registered", until(async || service().await != Value::Null)).await;
    let seen = service().await;
    assert_eq!(seen["Service"]["ID"], "armature-worker-00000000000000a1");
    assert_eq!(seen["Service"]["Tags"], json!(["namespace-prod", "model-smol-lm-2", "role-decode"]));
    assert_eq!((&seen["Service"]["Address"], &seen["Service"]["Port"]), (&json!("127.0.0.1"), &json!(7500)));
    let meta = &seen["Service"]["Meta"];
    assert_eq!((&meta["instance-id"], &meta["status"]), (&json!("00000000000000a1"), &json!("starting")));
    assert_eq!(meta["lease-epoch"], lease.epoch().to_string());
    let passing = async || entries(&agent, "armature-worker", "?passing").await;
    assert_eq!(passing().await, 0, "not yet serving");

    let publish = |status: InstanceStatus| SetStatusRequest { instance_id: 0xa1, status: status.into() };
    client.set_status(publish(InstanceStatus::Ready)).await.unwrap();
    patiently("passing", until(async || passing().await == 1)).await;
    for name in ["armature-worker.service.consul", "role-decode.armature-worker.service.consul"] {
        assert_eq!(srv(&agent, name).await, [7500], "{name}");
    }
    assert_eq!(srv(&agent, "role-prefill.armature-worker.service.consul").await, [0u16; 0]);

    client.set_status(publish(InstanceStatus::Draining)).await.unwrap();
    patiently("in maintenance", until(async || passing().await == 0)).await;
    let checks = service().await["Checks"].clone();
    let maintenance = |it: &&Value| it["CheckID"] == "_service_maintenance:armature-worker-00000000000000a1";
    let maintenance = checks.as_array().unwrap().iter().find(maintenance).cloned().unwrap();
    assert_eq!(maintenance["Notes"], "draining");
    assert_eq!(srv(&agent, "armature-worker.service.consul").await, [0u16; 0]);
}
