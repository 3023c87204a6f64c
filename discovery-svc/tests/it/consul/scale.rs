//! A thousand instances over two replicas and two agents, of which one each dies.

use std::collections::BTreeSet;
use std::time::Duration;

use armature_contracts::discovery::v1::InstanceStatus;
use armature_contracts::ids::InstanceId;
use armature_discovery::config::{Config, LeaseConfig};
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::discovery_client::{Component, Discovery, Instance, RegistrationOptions, Status};
use armature_svc_kit::drain::Drain;
use armature_test_backends::Consul;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::replica::{config, patiently, plain, serve, service, until};
use crate::fleet::{Fleet, View};

const INSTANCES: u64 = 1000;
const TTL: Duration = Duration::from_secs(30);

fn replica(name: &str, agent: &Consul) -> Config {
    let times = service(name, config(&agent.url(), "armature"));
    let lease = LeaseConfig {
        heartbeat_ms: 3000,
        ttl_seconds: TTL.as_secs(),
        recovery_seconds: TTL.as_secs(),
        grace_seconds: 60,
        ..LeaseConfig::default()
    };
    Config { lease, ..times }
}

/// Registers as every service does, with the given endpoints in this order.
fn instance(channels: &Channels, id: u64, endpoints: [&str; 2]) -> AbortOnDropHandle<()> {
    let endpoints = endpoints.map(Address::mem).to_vec();
    let address = Address::mem(format!("instance-{id}"));
    let starting = Instance::starting(InstanceId(id), "default", Component::Router, &address);
    let instance = Instance { status: Status::Ready, ..starting };
    let fenced = Box::new(|id| panic!("instance {id} was fenced"));
    let discovery = Discovery::new(channels.clone(), endpoints).unwrap();
    let (registrar, _) = discovery.register(RegistrationOptions { instance, model: None, fenced });
    AbortOnDropHandle::new(tokio::spawn(registrar.run(Drain::new())))
}

/// How many entries Consul's log of changes has.
async fn raft(server: &Consul) -> u64 {
    let about = plain(server, "/v1/agent/self").await;
    about["Stats"]["raft"]["applied_index"].as_str().unwrap().parse().unwrap()
}

/// The instances that a plain user of Consul gets; each counted as often as they get it.
async fn passing(agent: &Consul) -> Vec<String> {
    let entries = plain(agent, "/v1/health/service/armature-router?passing").await;
    let id = |it: &serde_json::Value| it["Service"]["Meta"]["instance-id"].as_str().unwrap().to_owned();
    entries.as_array().unwrap().iter().map(id).collect()
}

async fn whole(agent: &Consul) -> bool {
    // A megabyte each: not too often.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ids = passing(agent).await;
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert!(distinct.len() <= INSTANCES as usize, "ids that nobody has");
    ids.len() == INSTANCES as usize && distinct.len() == ids.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_instances_outlive_a_replica_and_an_agent() {
    let server = Consul::start(&[]);
    let mut agent = Consul::join(&server, &[]);
    let fleet = Fleet::new();
    let a = serve(&fleet, replica("a", &agent)).await;
    let b = serve(&fleet, replica("b", &server)).await;
    let channels = Channels::new(fleet.network.clone(), ChannelOptions::default()).unwrap();

    let (before, started) = (raft(&server).await, Instant::now());
    let endpoints = |id: u64| if id.is_multiple_of(2) { ["a", "b"] } else { ["b", "a"] };
    let instances: Vec<_> = (1..=INSTANCES).map(|id| instance(&channels, id, endpoints(id))).collect();
    let mut view = View::open(&b.client()).await;
    let ready = |view: &std::collections::BTreeMap<u64, armature_contracts::discovery::v1::Instance>| {
        view.len() == INSTANCES as usize && view.values().all(|it| it.status() == InstanceStatus::Ready)
    };
    patiently("everybody at B", view.until(ready)).await;
    patiently("everybody in Consul, once", until(async || whole(&server).await)).await;
    let registered = raft(&server).await - before;
    eprintln!("{INSTANCES} registered in {:?}: {registered} entries of Raft", started.elapsed());
    assert!(registered < 3 * INSTANCES, "{registered}");

    // Every lease is renewed several times; what remains are Consul's own affairs.
    let before = raft(&server).await;
    view.during(TTL / 2).await;
    let steady = raft(&server).await - before;
    eprintln!("{steady} entries of Raft in {:?}", TTL / 2);
    assert!(ready(&view.instances) && steady < INSTANCES / 10, "{steady}");

    let (before, killed) = (raft(&server).await, Instant::now());
    let epochs: Vec<u64> = view.instances.values().map(|it| it.lease_epoch).collect();
    a.kill().await;
    agent.kill();
    let moved = async {
        loop {
            assert_eq!(view.instances.len(), INSTANCES as usize, "nobody is lost");
            let higher =
                view.instances.values().zip(&epochs).filter(|(it, before)| it.lease_epoch > **before);
            if higher.count() == INSTANCES as usize / 2 && ready(&view.instances) {
                break;
            }
            assert!(view.next().await, "B serves");
        }
    };
    patiently("what A had is at B", moved).await;
    eprintln!("{} moved in {:?}", INSTANCES / 2, killed.elapsed());
    patiently("everybody in Consul, once", until(async || whole(&server).await)).await;
    let moved = raft(&server).await - before;
    eprintln!("{moved} entries of Raft in {:?}", killed.elapsed());
    assert!(moved < 3 * INSTANCES / 2, "{moved}");
    drop(instances);
}
