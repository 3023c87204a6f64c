//! A view stays right, and stays at all.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use armature_contracts::discovery::v1 as proto;
use armature_contracts::ids::InstanceId;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::discovery_client::{
    Component, Instance, Members, PROBE_LIMIT, Probe, Status, View, WatchOptions, health_probe,
};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::probe::{Probe as Service, Served};
use crate::registration::discovery;
use crate::registry::Registry;

fn instance(id: u64, status: Status) -> proto::Instance {
    let address = Address::mem(format!("worker-{id}"));
    let starting = Instance::starting(InstanceId(id), "default", Component::Worker, &address);
    (&Instance { status, lease_epoch: 1, ..starting }).into()
}

/// Who answers a probe.
#[derive(Clone, Default)]
struct Alive(Arc<Mutex<BTreeMap<u64, bool>>>);

impl Alive {
    fn set(&self, id: u64, alive: bool) {
        self.0.lock().unwrap().insert(id, alive);
    }

    fn probe(&self) -> Probe {
        let alive = self.clone();
        Arc::new(move |instance| {
            let answer = alive.0.lock().unwrap().get(&instance.id.0).copied().unwrap_or(false);
            Box::pin(std::future::ready(answer))
        })
    }
}

struct Watching {
    members: Members,
    drain: Drain,
    task: JoinHandle<()>,
}

impl Watching {
    fn start(network: &Network, names: &[&str], probe: Probe, file: Option<&Path>) -> Self {
        let options = WatchOptions {
            namespace: "default".to_owned(),
            components: vec![Component::Worker],
            last_good: file.map(Path::to_owned),
            probe,
        };
        let (watcher, members) = discovery(network, names).watch(options);
        let drain = Drain::new();
        Self { members, task: tokio::spawn(watcher.run(drain.clone())), drain }
    }

    /// Waits until the view has exactly these.
    async fn shows(&self, wanted: &[(u64, Status)]) -> Arc<View> {
        let holds = |view: &Arc<View>| {
            let shown = view.instances.values().map(|it| (it.id.0, it.status));
            shown.eq(wanted.iter().copied())
        };
        self.members.subscribe().wait_for(holds).await.unwrap().clone()
    }

    async fn live(&self, live: bool) {
        self.members.subscribe().wait_for(|view| view.live == live).await.unwrap();
    }

    async fn stop(self) {
        self.drain.begin();
        self.drain.run(Duration::ZERO, async {}, async {}).await;
        self.task.await.unwrap();
    }
}

use Status::{Draining, Ready, Suspect};

#[tokio::test(start_paused = true)]
async fn snapshot_then_deltas() {
    let network = Network::new();
    let registry = Registry::new(1);
    registry.put(instance(1, Ready));
    let _served = registry.serve(&network, "discovery").await;
    let watching = Watching::start(&network, &["discovery"], Alive::default().probe(), None);
    watching.members.seen().await;
    watching.shows(&[(1, Ready)]).await;
    registry.put(instance(2, Ready));
    registry.put(instance(1, Draining));
    watching.shows(&[(1, Draining), (2, Ready)]).await;
    registry.gone(1);
    let view = watching.shows(&[(2, Ready)]).await;
    assert_eq!((view.epoch, view.revision, view.live), (1, 4, true));
    assert_eq!(view.instances[&InstanceId(2)].grpc(), Some(Address::mem("worker-2")));
}

#[tokio::test(start_paused = true)]
async fn a_watch_moves_on_after_a_while_and_the_view_stands() {
    let network = Network::new();
    let (first, second) = (Registry::new(1), Registry::new(2));
    for registry in [&first, &second] {
        registry.put(instance(1, Ready));
    }
    let _served = (first.serve(&network, "first").await, second.serve(&network, "second").await);
    let watching = Watching::start(&network, &["first", "second"], Alive::default().probe(), None);
    watching.shows(&[(1, Ready)]).await;
    let mut views = watching.members.subscribe();
    let moved = async {
        while views.borrow_and_update().epoch != 2 {
            let view = views.borrow_and_update().clone();
            assert!(view.live && view.instances.len() == 1, "{view:?}");
            views.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(1201), moved).await.unwrap();
    assert_eq!(first.asked(), [(0, 0)]);
    assert_eq!(second.asked(), [(1, 1)], "with the view it has");
}

#[tokio::test(start_paused = true)]
async fn the_view_is_a_metric() {
    let network = Network::new();
    let registry = Registry::new(1);
    registry.put(instance(1, Ready));
    let _served = registry.serve(&network, "discovery").await;
    let watching = Watching::start(&network, &["discovery"], Alive::default().probe(), None);
    let mut metrics = prometheus_client::registry::Registry::default();
    let prefixed = metrics.sub_registry_with_prefix("armature_probe");
    watching.members.register_metrics(prefixed);
    Channels::new(network, ChannelOptions::default()).unwrap().register_metrics(prefixed);
    watching.shows(&[(1, Ready)]).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).unwrap();
    assert!(text.contains("armature_probe_discovery_live 1"), "{text}");
    assert!(text.contains("armature_probe_discovery_instances{status=\"ready\"} 1"), "{text}");
    assert!(text.contains("armature_probe_grpc_max_channels 1024"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_view_stands_while_discovery_is_away_and_resumes() {
    let network = Network::new();
    let registry = Registry::new(1);
    registry.put(instance(1, Ready));
    let served = registry.serve(&network, "discovery").await;
    let watching = Watching::start(&network, &["discovery"], Alive::default().probe(), None);
    watching.shows(&[(1, Ready)]).await;
    served.abort();
    watching.live(false).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    watching.shows(&[(1, Ready)]).await;
    let _served = registry.serve(&network, "discovery").await;
    watching.live(true).await;
    assert_eq!(registry.asked(), [(0, 0), (1, 1)]);
    registry.put(instance(2, Ready));
    watching.shows(&[(1, Ready), (2, Ready)]).await;
}

#[tokio::test(start_paused = true)]
async fn disorder_is_answered_by_a_snapshot() {
    let network = Network::new();
    let registry = Registry::new(1);
    registry.put(instance(1, Ready));
    let _served = registry.serve(&network, "discovery").await;
    let watching = Watching::start(&network, &["discovery"], Alive::default().probe(), None);
    watching.shows(&[(1, Ready)]).await;
    registry.disorder();
    watching.live(false).await;
    watching.live(true).await;
    assert_eq!(registry.asked(), [(0, 0), (0, 0)]);
    watching.shows(&[(1, Ready)]).await;
}

#[tokio::test(start_paused = true)]
async fn an_emptied_replica_makes_suspect_and_the_own_probe_decides() {
    let network = Network::new();
    let (full, empty) = (Registry::new(1), Registry::new(2));
    full.put(instance(1, Ready));
    full.put(instance(2, Ready));
    let served = full.serve(&network, "full").await;
    let _served = empty.serve(&network, "empty").await;
    let alive = Alive::default();
    alive.set(1, true);
    let watching = Watching::start(&network, &["full", "empty"], alive.probe(), None);
    watching.shows(&[(1, Ready), (2, Ready)]).await;
    let start = Instant::now();
    served.abort();
    watching.shows(&[(1, Suspect), (2, Suspect)]).await;
    watching.shows(&[(1, Suspect)]).await;
    assert!(start.elapsed() >= PROBE_LIMIT);
    empty.put(instance(1, Ready));
    watching.shows(&[(1, Ready)]).await;
}

#[tokio::test(start_paused = true)]
async fn an_own_doubt_ends_by_a_probe_either_way() {
    let network = Network::new();
    let registry = Registry::new(1);
    registry.put(instance(1, Ready));
    let _served = registry.serve(&network, "discovery").await;
    let alive = Alive::default();
    let watching = Watching::start(&network, &["discovery"], alive.probe(), None);
    watching.shows(&[(1, Ready)]).await;
    watching.members.mark_suspect(InstanceId(1));
    assert_eq!(watching.members.view().instances[&InstanceId(1)].status, Suspect);
    watching.shows(&[]).await;
    // It was a partition: discovery never doubted it, so it may come back.
    alive.set(1, true);
    watching.shows(&[(1, Ready)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_begins_with_the_last_good_view() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/view");
    let network = Network::new();
    let registry = Registry::new(1);
    registry.put(instance(1, Ready));
    registry.put(instance(2, Ready));
    let served = registry.serve(&network, "discovery").await;
    let alive = Alive::default();
    let watching = Watching::start(&network, &["discovery"], alive.probe(), Some(&file));
    watching.shows(&[(1, Ready), (2, Ready)]).await;
    watching.stop().await;
    served.abort();

    let watching = Watching::start(&network, &["discovery"], alive.probe(), Some(&file));
    watching.shows(&[(1, Suspect), (2, Suspect)]).await;
    alive.set(1, true);
    watching.shows(&[(1, Ready)]).await;
    watching.stop().await;

    std::fs::write(&file, b"something else").unwrap();
    let watching = Watching::start(&network, &["discovery"], alive.probe(), Some(&file));
    let _served = registry.serve(&network, "discovery").await;
    watching.shows(&[(1, Ready), (2, Ready)]).await;
}

#[tokio::test(start_paused = true)]
async fn the_health_probe_takes_any_answer_for_life() {
    let network = Network::new();
    let channels = Channels::new(network.clone(), ChannelOptions::default()).unwrap();
    let probe = health_probe(channels);
    let doubted = Arc::new(Instance::from(instance(1, Ready)));
    assert!(!probe(doubted.clone()).await);
    let served = Served::start(&network, "worker-1", ServerOptions::default(), Service::default()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(probe(doubted.clone()).await);
    served.task.abort();
    let _ = served.task.await;
    assert!(!probe(doubted).await);
}

#[tokio::test(start_paused = true)]
async fn a_successor_at_the_same_address_does_not_vouch_for_the_dead() {
    let network = Network::new();
    let probe = health_probe(Channels::new(network.clone(), ChannelOptions::default()).unwrap());
    let dead = Instance::from(instance(1, Ready));
    let successor = Instance { id: InstanceId(7), ..dead.clone() };
    let listener = network.bind(&dead.grpc().unwrap()).await.unwrap();
    let (id, present) = watch::channel(successor.id);
    let server = Server::new(ServerOptions::default(), ServerMetrics::default()).instance(present);
    let serving = tokio::spawn(server.serve(listener, Drain::new()));
    assert!(!probe(Arc::new(dead)).await);
    assert!(probe(Arc::new(successor.clone())).await);
    // The same process as another incarnation.
    let next = Instance { id: InstanceId(8), ..successor.clone() };
    id.send_replace(next.id);
    while !probe(Arc::new(next.clone())).await {}
    assert!(!probe(Arc::new(successor)).await);
    serving.abort();
}
