//! A small discovery service with faults, as the client sees one.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use armature_contracts::discovery::v1::discovery_service_server::{DiscoveryService, DiscoveryServiceServer};
use armature_contracts::discovery::v1::view_delta::Change;
use armature_contracts::discovery::v1::watch_response::Event;
use armature_contracts::discovery::v1::*;
use armature_contracts::error::{Fault, Reason};
use armature_svc_kit::address::Address;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::limited;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Default)]
struct State {
    instances: BTreeMap<u64, Instance>,
    fenced: BTreeSet<u64>,
    blobs: BTreeMap<Bytes, Bytes>,
    revision: u64,
    watchers: Vec<mpsc::UnboundedSender<Result<WatchResponse, Status>>>,
    /// (from_revision, epoch) of each watch.
    asked: Vec<(u64, u64)>,
}

/// Clones are the same registry.
#[derive(Clone)]
pub(crate) struct Registry {
    epoch: u64,
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Registry {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, state: Arc::default(), changed: Arc::new(watch::channel(0).0) }
    }

    /// Serves at `mem:NAME` until the task is aborted.
    pub(crate) async fn serve(&self, network: &Network, name: &str) -> JoinHandle<()> {
        let listener = network.bind(&Address::mem(name)).await.unwrap();
        let metrics = ServerMetrics::new(&mut prometheus_client::registry::Registry::default());
        let server = Server::new(ServerOptions::default(), metrics)
            .service(limited!(DiscoveryServiceServer::new(self.clone())));
        tokio::spawn(async move { server.serve(listener, Drain::new()).await.unwrap() })
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    fn announce(state: &mut State, change: Change) {
        state.revision += 1;
        let delta = ViewDelta { revision: state.revision, change: Some(change) };
        let message = WatchResponse { event: Some(Event::Delta(delta)) };
        state.watchers.retain(|watcher| watcher.send(Ok(message.clone())).is_ok());
    }

    pub(crate) fn put(&self, instance: Instance) {
        self.change(|state| {
            state.instances.insert(instance.instance_id, instance.clone());
            Self::announce(state, Change::Put(instance));
        });
    }

    pub(crate) fn gone(&self, instance_id: u64) {
        self.change(|state| {
            let lease_epoch = state.instances.remove(&instance_id).map_or(0, |it| it.lease_epoch);
            state.fenced.insert(instance_id);
            Self::announce(state, Change::Gone(InstanceGone { instance_id, lease_epoch }));
        });
    }

    /// Forgets everything, as a backend that comes back empty.
    pub(crate) fn empty(&self) {
        self.change(|state| {
            state.instances.clear();
            state.blobs.clear();
        });
    }

    /// Sends a delta that does not follow.
    pub(crate) fn disorder(&self) {
        self.change(|state| {
            let delta = ViewDelta { revision: state.revision, change: None };
            let message = WatchResponse { event: Some(Event::Delta(delta)) };
            state.watchers.retain(|watcher| watcher.send(Ok(message.clone())).is_ok());
        });
    }

    pub(crate) fn asked(&self) -> Vec<(u64, u64)> {
        self.state.lock().unwrap().asked.clone()
    }

    /// Waits until the registered instances satisfy a condition.
    pub(crate) async fn until(&self, condition: impl Fn(&BTreeMap<u64, Instance>) -> bool) {
        let holds = |_: &u64| condition(&self.state.lock().unwrap().instances);
        self.changed.subscribe().wait_for(holds).await.unwrap();
    }
}

#[tonic::async_trait]
impl DiscoveryService for Registry {
    type KeepAliveStream = Answers<KeepAliveResponse>;
    type WatchStream = Answers<WatchResponse>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let mut instance = request.into_inner().instance.unwrap();
        self.change(|state| {
            if state.fenced.contains(&instance.instance_id) {
                return Err(Fault::new(Reason::InstanceFenced, "announced gone").into());
            }
            if !instance.card_digest.is_empty() && !state.blobs.contains_key(&instance.card_digest) {
                return Err(Fault::new(Reason::CardUnknown, "put it first").into());
            }
            let held = state.instances.get(&instance.instance_id).map_or(0, |held| held.lease_epoch);
            instance.lease_epoch = held + 1;
            let lease_epoch = instance.lease_epoch;
            state.instances.insert(instance.instance_id, instance.clone());
            Self::announce(state, Change::Put(instance));
            Ok(Response::new(RegisterResponse { lease_epoch, ttl: None, heartbeat_interval: None }))
        })
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let registry = self.clone();
        let answers = request.into_inner().map(move |beat| {
            let beat = beat?;
            let known = registry.state.lock().unwrap().instances.contains_key(&beat.instance_id);
            Ok(KeepAliveResponse { register_again: !known })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn set_status(
        &self,
        request: Request<SetStatusRequest>,
    ) -> Result<Response<SetStatusResponse>, Status> {
        let SetStatusRequest { instance_id, status } = request.into_inner();
        self.change(|state| match state.instances.get_mut(&instance_id) {
            Some(instance) => {
                instance.status = status;
                let instance = instance.clone();
                Self::announce(state, Change::Put(instance));
                Ok(Response::new(SetStatusResponse {}))
            }
            None => Err(Fault::new(Reason::LeaseUnknown, "no such lease").into()),
        })
    }

    async fn deregister(
        &self,
        request: Request<DeregisterRequest>,
    ) -> Result<Response<DeregisterResponse>, Status> {
        self.gone(request.into_inner().instance_id);
        Ok(Response::new(DeregisterResponse {}))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let WatchRequest { from_revision, epoch, .. } = request.into_inner();
        let (sender, receiver) = mpsc::unbounded_channel();
        self.change(|state| {
            state.asked.push((from_revision, epoch));
            if (epoch, from_revision) != (self.epoch, state.revision) {
                let snapshot = ViewSnapshot {
                    revision: state.revision,
                    epoch: self.epoch,
                    instances: state.instances.values().cloned().collect(),
                };
                sender.send(Ok(WatchResponse { event: Some(Event::Snapshot(snapshot)) })).unwrap();
            }
            state.watchers.push(sender);
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn put_card(&self, request: Request<PutCardRequest>) -> Result<Response<PutCardResponse>, Status> {
        let PutCardRequest { digest, card } = request.into_inner();
        self.change(|state| state.blobs.insert(digest, card));
        Ok(Response::new(PutCardResponse {}))
    }

    async fn get_card(&self, request: Request<GetCardRequest>) -> Result<Response<GetCardResponse>, Status> {
        let blob = self.state.lock().unwrap().blobs.get(&request.get_ref().digest).cloned();
        let card = blob.ok_or_else(|| Fault::new(Reason::CardUnknown, "no such card"))?;
        Ok(Response::new(GetCardResponse { card }))
    }

    async fn put_artifact(
        &self,
        request: Request<PutArtifactRequest>,
    ) -> Result<Response<PutArtifactResponse>, Status> {
        let PutArtifactRequest { digest, content } = request.into_inner();
        self.change(|state| state.blobs.insert(digest, content));
        Ok(Response::new(PutArtifactResponse {}))
    }

    /// Answers with something else, as a broken store does.
    async fn get_artifact(
        &self,
        _: Request<GetArtifactRequest>,
    ) -> Result<Response<GetArtifactResponse>, Status> {
        Ok(Response::new(GetArtifactResponse { content: Bytes::from_static(b"something else") }))
    }

    async fn campaign(&self, _: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        Err(Status::unimplemented("no leaders here"))
    }

    async fn resign(&self, _: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        Err(Status::unimplemented("no leaders here"))
    }
}
