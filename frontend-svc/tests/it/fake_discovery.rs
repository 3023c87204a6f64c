//! A discovery service that says what the test wants.

use std::collections::HashMap;
use std::sync::Arc;

use armature_contracts::discovery::v1 as wire;
use armature_contracts::discovery::v1::discovery_service_server::DiscoveryService;
use armature_contracts::error::{Fault, Reason};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone, Default)]
pub(crate) struct Content {
    pub(crate) instances: Vec<wire::Instance>,
    pub(crate) blobs: HashMap<Bytes, Bytes>,
    revision: u64,
}

#[derive(Clone)]
pub(crate) struct FakeDiscovery {
    pub(crate) content: Arc<watch::Sender<Content>>,
}

impl FakeDiscovery {
    pub(crate) fn new() -> Self {
        Self { content: Arc::new(watch::channel(Content::default()).0) }
    }

    pub(crate) fn put(&self, instance: wire::Instance) {
        self.content.send_modify(|content| {
            content.instances.retain(|it| it.instance_id != instance.instance_id);
            content.instances.push(instance);
            content.revision += 1;
        });
    }

    pub(crate) fn remove(&self, id: u64) {
        self.content.send_modify(|content| {
            content.instances.retain(|it| it.instance_id != id);
            content.revision += 1;
        });
    }

    pub(crate) fn store(&self, bytes: impl Into<Bytes>) -> Bytes {
        let bytes = bytes.into();
        let digest = Bytes::copy_from_slice(blake3::hash(&bytes).as_bytes());
        self.content.send_modify(|content| {
            content.blobs.insert(digest.clone(), bytes);
        });
        digest
    }

    /// Stores bytes under a digest that is not theirs.
    pub(crate) fn forge(&self, digest: Bytes, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.content.send_modify(|content| {
            content.blobs.insert(digest, bytes);
        });
    }

    fn blob(&self, digest: &Bytes) -> Result<Bytes, Status> {
        let unknown = || Fault::new(Reason::ArtifactUnknown, "no such artifact").into();
        self.content.borrow().blobs.get(digest).cloned().ok_or_else(unknown)
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DiscoveryService for FakeDiscovery {
    type KeepAliveStream = BoxStream<'static, Result<wire::KeepAliveResponse, Status>>;
    type WatchStream = BoxStream<'static, Result<wire::WatchResponse, Status>>;

    async fn register(&self, _: Request<wire::RegisterRequest>) -> Answer<wire::RegisterResponse> {
        Ok(Response::new(wire::RegisterResponse { lease_epoch: 1, ..Default::default() }))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<wire::KeepAliveRequest>>,
    ) -> Answer<Self::KeepAliveStream> {
        let beats = request.into_inner();
        Ok(Response::new(beats.map(|beat| beat.map(|_| wire::KeepAliveResponse::default())).boxed()))
    }

    async fn set_status(&self, _: Request<wire::SetStatusRequest>) -> Answer<wire::SetStatusResponse> {
        Ok(Response::new(wire::SetStatusResponse {}))
    }

    async fn deregister(&self, _: Request<wire::DeregisterRequest>) -> Answer<wire::DeregisterResponse> {
        Ok(Response::new(wire::DeregisterResponse {}))
    }

    async fn watch(&self, _: Request<wire::WatchRequest>) -> Answer<Self::WatchStream> {
        let snapshots = WatchStream::new(self.content.subscribe()).map(|content| {
            let snapshot =
                wire::ViewSnapshot { revision: content.revision, epoch: 1, instances: content.instances };
            Ok(wire::WatchResponse { event: Some(wire::watch_response::Event::Snapshot(snapshot)) })
        });
        Ok(Response::new(snapshots.boxed()))
    }

    async fn put_card(&self, _: Request<wire::PutCardRequest>) -> Answer<wire::PutCardResponse> {
        Ok(Response::new(wire::PutCardResponse {}))
    }

    async fn get_card(&self, request: Request<wire::GetCardRequest>) -> Answer<wire::GetCardResponse> {
        Ok(Response::new(wire::GetCardResponse { card: self.blob(&request.get_ref().digest)? }))
    }

    async fn put_artifact(&self, _: Request<wire::PutArtifactRequest>) -> Answer<wire::PutArtifactResponse> {
        Ok(Response::new(wire::PutArtifactResponse {}))
    }

    async fn get_artifact(
        &self,
        request: Request<wire::GetArtifactRequest>,
    ) -> Answer<wire::GetArtifactResponse> {
        Ok(Response::new(wire::GetArtifactResponse { content: self.blob(&request.get_ref().digest)? }))
    }

    async fn campaign(&self, _: Request<wire::CampaignRequest>) -> Answer<wire::CampaignResponse> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn resign(&self, _: Request<wire::ResignRequest>) -> Answer<wire::ResignResponse> {
        Err(Status::unimplemented("not needed here"))
    }
}
