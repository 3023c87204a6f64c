//! A discovery service as a worker sees one: it takes what it is told, and can announce that an instance is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use armature_contracts::discovery::v1::discovery_service_server::{DiscoveryService, DiscoveryServiceServer};
use armature_contracts::discovery::v1::*;
use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::InstanceId;
use armature_svc_kit::address::Address;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::limited;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, Empty};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

#[derive(Default)]
struct State {
    instances: BTreeMap<u64, Instance>,
    gone: BTreeSet<u64>,
}

/// Clones are the same registry.
#[derive(Clone)]
pub(crate) struct Registry {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<()>>,
}

impl Registry {
    /// Serves at `mem:discovery` for as long as the handle lives.
    pub(crate) async fn serve(network: &Network) -> (Self, AbortOnDropHandle<()>) {
        let it = Self { state: Arc::default(), changed: Arc::new(watch::channel(()).0) };
        let listener = network.bind(&Address::mem("discovery")).await.unwrap();
        let server = Server::new(ServerOptions::default(), ServerMetrics::default())
            .service(limited!(DiscoveryServiceServer::new(it.clone())));
        let serving = tokio::spawn(async move { server.serve(listener, Drain::new()).await.unwrap() });
        (it, AbortOnDropHandle::new(serving))
    }

    /// An instance is gone, whatever it thinks of that.
    pub(crate) fn announce_gone(&self, InstanceId(id): InstanceId) {
        let mut state = self.state.lock().unwrap();
        assert!(state.instances.remove(&id).is_some(), "only one that is registered can be announced gone");
        state.gone.insert(id);
    }

    /// The status of an instance, as published last.
    pub(crate) fn status(&self, InstanceId(id): InstanceId) -> i32 {
        self.state.lock().unwrap().instances.get(&id).map_or(0, |instance| instance.status)
    }

    /// Waits until an instance is registered, and gives what it has registered.
    pub(crate) async fn registered(&self, InstanceId(id): InstanceId) -> Instance {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(instance) = self.state.lock().unwrap().instances.get(&id) {
                return instance.clone();
            }
            changed.changed().await.unwrap();
        }
    }
}

#[tonic::async_trait]
impl DiscoveryService for Registry {
    type KeepAliveStream = BoxStream<'static, Result<KeepAliveResponse, Status>>;
    type WatchStream = Empty<Result<WatchResponse, Status>>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let instance = request.into_inner().instance.unwrap();
        let mut state = self.state.lock().unwrap();
        if state.gone.contains(&instance.instance_id) {
            return Err(Fault::new(Reason::InstanceFenced, "announced gone").into());
        }
        state.instances.insert(instance.instance_id, instance);
        self.changed.send_replace(());
        Ok(Response::new(RegisterResponse { lease_epoch: 1, ttl: None, heartbeat_interval: None }))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let registry = self.clone();
        let answers = request.into_inner().map(move |beat| {
            let known = registry.state.lock().unwrap().instances.contains_key(&beat?.instance_id);
            Ok(KeepAliveResponse { register_again: !known })
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn set_status(
        &self,
        request: Request<SetStatusRequest>,
    ) -> Result<Response<SetStatusResponse>, Status> {
        let SetStatusRequest { instance_id, status } = request.into_inner();
        if let Some(instance) = self.state.lock().unwrap().instances.get_mut(&instance_id) {
            instance.status = status;
        }
        Ok(Response::new(SetStatusResponse {}))
    }

    async fn deregister(
        &self,
        request: Request<DeregisterRequest>,
    ) -> Result<Response<DeregisterResponse>, Status> {
        self.state.lock().unwrap().instances.remove(&request.get_ref().instance_id);
        Ok(Response::new(DeregisterResponse {}))
    }

    async fn put_card(&self, _: Request<PutCardRequest>) -> Result<Response<PutCardResponse>, Status> {
        Ok(Response::new(PutCardResponse {}))
    }

    async fn put_artifact(
        &self,
        _: Request<PutArtifactRequest>,
    ) -> Result<Response<PutArtifactResponse>, Status> {
        Ok(Response::new(PutArtifactResponse {}))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(not_for_workers())
    }

    async fn get_card(&self, _: Request<GetCardRequest>) -> Result<Response<GetCardResponse>, Status> {
        Err(not_for_workers())
    }

    async fn get_artifact(
        &self,
        _: Request<GetArtifactRequest>,
    ) -> Result<Response<GetArtifactResponse>, Status> {
        Err(not_for_workers())
    }

    async fn campaign(&self, _: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        Err(not_for_workers())
    }

    async fn resign(&self, _: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        Err(not_for_workers())
    }
}

/// Only frontends, routers and planners watch or lead.
fn not_for_workers() -> Status {
    Status::unimplemented("workers do not ask for this")
}
