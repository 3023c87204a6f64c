//! A discovery service, instances that keep leases, and watchers that keep a view.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::discovery::v1::discovery_service_client::DiscoveryServiceClient;
use armature_contracts::discovery::v1::view_delta::Change;
use armature_contracts::discovery::v1::watch_response::Event;
use armature_contracts::discovery::v1::{
    Component, Instance, InstanceStatus, KeepAliveRequest, ModelCard, PutCardRequest, RegisterRequest,
    WatchRequest, WatchResponse,
};
use armature_contracts::error::{Fault, Reason};
use armature_discovery::app::{self, Parts, RunError, Running};
use armature_discovery::config::Config;
use armature_discovery::domain::instance::Digest;
use armature_discovery::ports::Backend;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::limited;
use armature_svc_kit::network::Network;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;

pub(crate) type Client = DiscoveryServiceClient<Channel>;

/// Names on one network, so that a service can die and come back.
pub(crate) struct Fleet {
    pub(crate) network: Network,
}

pub(crate) struct Server {
    pub(crate) drain: Drain,
    address: Address,
    admin: Option<Address>,
    channels: Channels,
    running: AbortOnDropHandle<Result<(), RunError>>,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        Self { network: Network::new() }
    }

    pub(crate) fn config(name: &str) -> Config {
        Config { listen: Address::mem(name), admin: None, ..Config::default() }
    }

    pub(crate) async fn serve(&self, config: Config) -> Server {
        let drain = Drain::new();
        self.serving(app::start(config, self.parts(&drain)).await.unwrap(), drain)
    }

    pub(crate) async fn replica(&self, name: &str, backend: Arc<dyn Backend>) -> Server {
        let drain = Drain::new();
        let running = app::start_on(Self::config(name), self.parts(&drain), backend).await.unwrap();
        self.serving(running, drain)
    }

    fn parts(&self, drain: &Drain) -> Parts {
        Parts { network: self.network.clone(), registry: Registry::default(), drain: drain.clone() }
    }

    fn serving(&self, running: Running, drain: Drain) -> Server {
        let address = running.grpc.parse().unwrap();
        let admin = running.admin.as_ref().map(|it| it.parse().unwrap());
        let channels = Channels::new(self.network.clone(), ChannelOptions::default()).unwrap();
        let running = AbortOnDropHandle::new(tokio::spawn(running.finished()));
        Server { drain, address, admin, channels, running }
    }
}

impl Server {
    /// A client with a connection of its own.
    pub(crate) fn client(&self) -> Client {
        let channels = Channels::new(self.channels.network().clone(), ChannelOptions::default()).unwrap();
        limited!(DiscoveryServiceClient::new(channels.to(&self.address)))
    }

    /// The admin address.
    pub(crate) fn admin(&self) -> &Address {
        self.admin.as_ref().unwrap()
    }

    /// Cuts everything at once, as a kill does.
    pub(crate) async fn kill(self) {
        self.running.abort();
        self.running.await.unwrap_err();
    }

    /// Drains and ends.
    pub(crate) async fn stop(self) {
        self.drain.begin();
        self.running.await.unwrap().unwrap();
    }
}

/// An instance of a component without a card.
pub(crate) fn instance(id: u64, component: Component) -> Instance {
    Instance {
        instance_id: id,
        component: component.into(),
        addresses: [("grpc".to_owned(), format!("mem:instance-{id}"))].into(),
        status: InstanceStatus::Ready.into(),
        ..Instance::default()
    }
}

/// A router.
pub(crate) fn router(id: u64) -> Instance {
    instance(id, Component::Router)
}

/// A worker that shows a card.
pub(crate) fn worker(id: u64, card: &ModelCard) -> Instance {
    let digest = Digest::of(&card.encode_to_vec());
    Instance { card_digest: digest.0.to_vec().into(), ..instance(id, Component::Worker) }
}

/// A card.
pub(crate) fn card(block_size: u32) -> ModelCard {
    ModelCard {
        served_name: "tiny".into(),
        model_digest: vec![7; 32].into(),
        block_size,
        dp_rank_count: 1,
        ..ModelCard::default()
    }
}

pub(crate) async fn put_card(client: &mut Client, card: &ModelCard) {
    let bytes = card.encode_to_vec();
    let digest = Digest::of(&bytes).0.to_vec().into();
    client.put_card(PutCardRequest { digest, card: bytes.into() }).await.unwrap();
}

pub(crate) async fn register(client: &mut Client, instance: &Instance) -> Result<u64, Fault> {
    let answer = client.register(RegisterRequest { instance: Some(instance.clone()) }).await;
    answer.map(|answer| answer.into_inner().lease_epoch).map_err(|status| Fault::from_status(&status))
}

/// A lease with a heartbeat a second; registers again when told to. Dropping it breaks the stream.
pub(crate) struct Lease {
    _beating: AbortOnDropHandle<()>,
    epoch: watch::Receiver<u64>,
}

impl Lease {
    pub(crate) async fn open(client: &Client, instance: &Instance) -> Self {
        let mut client = client.clone();
        let granted = register(&mut client, instance).await.unwrap();
        let (epochs, epoch) = watch::channel(granted);
        let (attached, mut first) = watch::channel(false);
        let instance = instance.clone();
        let beating: JoinHandle<()> = tokio::spawn(async move {
            let mut instance = Instance { lease_epoch: granted, ..instance };
            loop {
                // Another stream, and another registration, whenever this one is of no use any more.
                let _ = beat(&mut client, &mut instance, &epochs, &attached).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        first.wait_for(|attached| *attached).await.unwrap();
        Self { _beating: AbortOnDropHandle::new(beating), epoch }
    }

    /// Of the last registration.
    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Waits until it has registered again.
    pub(crate) async fn registered_again(&mut self) -> u64 {
        self.epoch.changed().await.unwrap();
        self.epoch()
    }
}

async fn beat(
    client: &mut Client,
    instance: &mut Instance,
    epochs: &watch::Sender<u64>,
    attached: &watch::Sender<bool>,
) -> Option<()> {
    let (beats, outbound) = tokio::sync::mpsc::channel(4);
    let mut tick = interval(Duration::from_secs(1));
    let request =
        |it: &Instance| KeepAliveRequest { instance_id: it.instance_id, lease_epoch: it.lease_epoch };
    beats.send(request(instance)).await.ok()?;
    let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
    let mut answers = client.keep_alive(outbound).await.ok()?.into_inner();
    loop {
        if answers.message().await.ok()??.register_again {
            instance.lease_epoch = register(client, instance).await.ok()?;
            epochs.send_replace(instance.lease_epoch);
        } else {
            attached.send_replace(true);
            tick.tick().await;
        }
        beats.send(request(instance)).await.ok()?;
    }
}

/// A consumer's view.
pub(crate) struct View {
    stream: Streaming<WatchResponse>,
    pub(crate) instances: BTreeMap<u64, Instance>,
    pub(crate) revision: u64,
    pub(crate) epoch: u64,
    pub(crate) snapshots: usize,
}

impl View {
    pub(crate) async fn open(client: &Client) -> Self {
        Self::watch(client, WatchRequest::default()).await
    }

    pub(crate) async fn watch(client: &Client, request: WatchRequest) -> Self {
        let stream = client.clone().watch(request).await.unwrap().into_inner();
        Self { stream, instances: BTreeMap::new(), revision: 0, epoch: 0, snapshots: 0 }
    }

    /// Goes on watching at another server or after a pause.
    pub(crate) async fn resume(&mut self, client: &Client) {
        let request =
            WatchRequest { from_revision: self.revision, epoch: self.epoch, ..WatchRequest::default() };
        self.stream = client.clone().watch(request).await.unwrap().into_inner();
    }

    /// Takes in one message; false at the end of the stream.
    pub(crate) async fn next(&mut self) -> bool {
        let Ok(Some(WatchResponse { event: Some(event) })) = self.stream.message().await else {
            return false;
        };
        match event {
            Event::Snapshot(snapshot) => {
                self.snapshots += 1;
                (self.revision, self.epoch) = (snapshot.revision, snapshot.epoch);
                self.instances = snapshot.instances.into_iter().map(|it| (it.instance_id, it)).collect();
            }
            Event::Delta(delta) => {
                assert!(delta.revision > self.revision, "revisions grow");
                self.revision = delta.revision;
                match delta.change.unwrap() {
                    Change::Put(it) => {
                        let known = self.instances.get(&it.instance_id).map_or(0, |known| known.lease_epoch);
                        assert!(it.lease_epoch >= known, "epochs never fall");
                        self.instances.insert(it.instance_id, it);
                    }
                    Change::Gone(gone) => {
                        self.instances.remove(&gone.instance_id);
                    }
                }
            }
        }
        true
    }

    /// Takes in messages until the view is as wanted.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&BTreeMap<u64, Instance>) -> bool) {
        while !wanted(&self.instances) {
            assert!(
                self.next().await,
                "the stream ended before the view was as wanted: {:?}",
                self.instances
            );
        }
    }

    pub(crate) async fn until_ids(&mut self, ids: &[u64]) {
        self.until(|view| view.keys().copied().eq(ids.iter().copied())).await;
    }

    /// Takes in messages for a span of virtual time.
    pub(crate) async fn during(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while let Ok(true) = tokio::time::timeout_at(end, self.next()).await {}
    }

    pub(crate) fn status(&self, id: u64) -> InstanceStatus {
        self.instances[&id].status()
    }
}

/// Lets a span of virtual time pass.
pub(crate) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

pub(crate) fn reason<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> Reason {
    Fault::from_status(&result.unwrap_err()).reason
}
