//! A registry in memory: a snapshot at every change, as a client must accept.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use armature_contracts::discovery::v1::discovery_service_server::DiscoveryService;
use armature_contracts::discovery::v1::watch_response::Event;
use armature_contracts::discovery::v1::*;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};

/// What is registered now, and every status that was ever published, for one may be gone before a test looks.
#[derive(Clone, Default)]
struct Stored {
    revision: u64,
    instances: BTreeMap<u64, Instance>,
    published: Vec<(u64, InstanceStatus)>,
}

/// Clones are the same registry.
#[derive(Clone)]
pub struct FakeDiscovery {
    stored: Arc<watch::Sender<Stored>>,
    cards: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>,
}

impl FakeDiscovery {
    pub fn new() -> Self {
        Self { stored: Arc::new(watch::channel(Stored::default()).0), cards: Arc::default() }
    }

    pub fn put(&self, instance: Instance) {
        self.change(|all| _ = all.insert(instance.instance_id, instance));
    }

    pub fn remove(&self, id: u64) {
        self.change(|all| _ = all.remove(&id));
    }

    pub fn set_status_of(&self, id: u64, status: InstanceStatus) {
        self.change(|all| all.get_mut(&id).unwrap().status = status.into());
    }

    /// Stores a card; answers its digest.
    pub fn put_card_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        let digest = armature_svc_kit::discovery_client::Digest::of(&bytes).0.to_vec();
        self.cards.lock().unwrap().insert(digest.clone(), bytes);
        digest
    }

    /// Waits until an instance has published `status`.
    pub async fn reached(&self, id: u64, status: InstanceStatus) {
        let published = |stored: &Stored| stored.published.contains(&(id, status));
        self.stored.subscribe().wait_for(published).await.unwrap();
    }

    /// Waits until an instance is gone.
    pub async fn gone(&self, id: u64) {
        self.stored.subscribe().wait_for(|stored| !stored.instances.contains_key(&id)).await.unwrap();
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, Instance>)) {
        self.stored.send_modify(|stored| {
            stored.revision += 1;
            change(&mut stored.instances);
            let now: Vec<_> = stored.instances.values().map(|it| (it.instance_id, it.status())).collect();
            stored.published.extend(now);
        });
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl DiscoveryService for FakeDiscovery {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        self.put(request.into_inner().instance.unwrap());
        Ok(Response::new(RegisterResponse { lease_epoch: 1, ..Default::default() }))
    }

    type KeepAliveStream = Answers<KeepAliveResponse>;

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let answers = request.into_inner().map(|beat| beat.map(|_| KeepAliveResponse::default()));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn set_status(
        &self,
        request: Request<SetStatusRequest>,
    ) -> Result<Response<SetStatusResponse>, Status> {
        let request = request.into_inner();
        self.set_status_of(request.instance_id, request.status());
        Ok(Response::new(SetStatusResponse {}))
    }

    async fn deregister(
        &self,
        request: Request<DeregisterRequest>,
    ) -> Result<Response<DeregisterResponse>, Status> {
        self.remove(request.into_inner().instance_id);
        Ok(Response::new(DeregisterResponse {}))
    }

    type WatchStream = Answers<WatchResponse>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let snapshots = WatchStream::new(self.stored.subscribe()).map(|stored| {
            let instances = stored.instances.into_values().collect();
            let snapshot = ViewSnapshot { revision: stored.revision + 1, epoch: 1, instances };
            Ok(WatchResponse { event: Some(Event::Snapshot(snapshot)) })
        });
        Ok(Response::new(Box::pin(snapshots)))
    }

    async fn put_card(&self, request: Request<PutCardRequest>) -> Result<Response<PutCardResponse>, Status> {
        self.put_card_bytes(request.into_inner().card.to_vec());
        Ok(Response::new(PutCardResponse {}))
    }

    async fn get_card(&self, request: Request<GetCardRequest>) -> Result<Response<GetCardResponse>, Status> {
        let card = self.cards.lock().unwrap().get(&request.into_inner().digest[..]).cloned();
        let card = card.ok_or_else(|| Status::not_found("no such card"))?;
        Ok(Response::new(GetCardResponse { card: card.into() }))
    }

    async fn put_artifact(
        &self,
        _: Request<PutArtifactRequest>,
    ) -> Result<Response<PutArtifactResponse>, Status> {
        Err(Status::unimplemented("no artifacts here"))
    }

    async fn get_artifact(
        &self,
        _: Request<GetArtifactRequest>,
    ) -> Result<Response<GetArtifactResponse>, Status> {
        Err(Status::unimplemented("no artifacts here"))
    }

    async fn campaign(&self, _: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        Err(Status::unimplemented("no leaders here"))
    }

    async fn resign(&self, _: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        Err(Status::unimplemented("no leaders here"))
    }
}
