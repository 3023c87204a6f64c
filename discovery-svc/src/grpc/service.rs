//! `armature.discovery.v1.DiscoveryService`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::MAX_ARTIFACT_BYTES;
use armature_contracts::discovery::v1::discovery_service_server::DiscoveryService;
use armature_contracts::discovery::v1::{
    CampaignRequest, CampaignResponse, DeregisterRequest, DeregisterResponse, GetArtifactRequest,
    GetArtifactResponse, GetCardRequest, GetCardResponse, KeepAliveRequest, KeepAliveResponse,
    PutArtifactRequest, PutArtifactResponse, PutCardRequest, PutCardResponse, RegisterRequest,
    RegisterResponse, ResignRequest, ResignResponse, SetStatusRequest, SetStatusResponse, WatchRequest,
    WatchResponse,
};
use armature_svc_kit::drain::Drain;
use futures_util::Stream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status, Streaming};

use super::status::CallError;
use super::watch::Seat;
use super::{convert, keep_alive, watch};
use crate::adapters::card;
use crate::domain::instance::Digest;
use crate::domain::leaders::Term;
use crate::replica::Replica;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The gRPC face of a [`Replica`].
#[derive(Clone)]
pub struct Discovery {
    replica: Arc<Replica>,
    ttl: Duration,
    heartbeat: Duration,
    seats: Arc<Semaphore>,
    watchers: usize,
    drain: Drain,
}

impl Discovery {
    /// Serves `replica`, at most `watchers` watch streams at a time, until `drain` stops.
    pub fn new(
        replica: Arc<Replica>,
        ttl: Duration,
        heartbeat: Duration,
        watchers: usize,
        drain: Drain,
    ) -> Self {
        let seats = Arc::new(Semaphore::new(watchers.min(Semaphore::MAX_PERMITS)));
        Self { replica, ttl, heartbeat, seats, watchers, drain }
    }
}

#[tonic::async_trait]
impl DiscoveryService for Discovery {
    type KeepAliveStream = Answers<KeepAliveResponse>;
    type WatchStream = Answers<WatchResponse>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let instance = convert::instance(request.into_inner().instance)?;
        let epoch = self.replica.register(instance).await.map_err(CallError::from)?;
        Ok(Response::new(RegisterResponse {
            lease_epoch: epoch.0,
            ttl: Some(convert::duration(self.ttl)),
            heartbeat_interval: Some(convert::duration(self.heartbeat)),
        }))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let answers = keep_alive::answers(self.replica.clone(), request.into_inner(), self.drain.clone());
        Ok(Response::new(Box::pin(answers)))
    }

    async fn set_status(
        &self,
        request: Request<SetStatusRequest>,
    ) -> Result<Response<SetStatusResponse>, Status> {
        let request = request.into_inner();
        let id = convert::instance_id("instance_id", request.instance_id)?;
        let status = convert::status("status", request.status)?;
        self.replica.backend().set_status(id, status).await.map_err(CallError::from)?;
        tracing::info!(instance = %id, status = status.as_str(), "status published");
        Ok(Response::new(SetStatusResponse {}))
    }

    async fn deregister(
        &self,
        request: Request<DeregisterRequest>,
    ) -> Result<Response<DeregisterResponse>, Status> {
        let id = convert::instance_id("instance_id", request.into_inner().instance_id)?;
        self.replica.backend().deregister(id).await.map_err(CallError::from)?;
        tracing::info!(instance = %id, "deregistered");
        Ok(Response::new(DeregisterResponse {}))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (selector, seen) = convert::selector(request.into_inner())?;
        let full = CallError::TooManyWatchers { limit: self.watchers };
        let permit = self.seats.clone().try_acquire_owned().map_err(|_| full)?;
        let seat = Seat::new(permit, self.replica.metrics().watchers.clone());
        let watcher = self.replica.watch(selector, seen);
        let told = watch::told(self.replica.clone(), watcher, seat, self.drain.clone());
        Ok(Response::new(Box::pin(told)))
    }

    async fn put_card(&self, request: Request<PutCardRequest>) -> Result<Response<PutCardResponse>, Status> {
        let PutCardRequest { digest, card } = request.into_inner();
        let digest = convert::digest("digest", &digest)?;
        let content = card.clone();
        let read = spawn_blocking(move || card::read(digest, &content)).await;
        let facts = read.map_err(CallError::Verification)?.map_err(CallError::from)?;
        self.replica.backend().put_card(facts, card).await.map_err(CallError::from)?;
        Ok(Response::new(PutCardResponse {}))
    }

    async fn get_card(&self, request: Request<GetCardRequest>) -> Result<Response<GetCardResponse>, Status> {
        let digest = convert::digest("digest", &request.into_inner().digest)?;
        let card = self.replica.backend().card(digest).await.map_err(CallError::from)?;
        let card = card.ok_or(CallError::CardUnknown(digest))?;
        Ok(Response::new(GetCardResponse { card }))
    }

    async fn put_artifact(
        &self,
        request: Request<PutArtifactRequest>,
    ) -> Result<Response<PutArtifactResponse>, Status> {
        let PutArtifactRequest { digest, content } = request.into_inner();
        let digest = convert::digest("digest", &digest)?;
        let size = content.len();
        if size > MAX_ARTIFACT_BYTES {
            return Err(CallError::ArtifactTooLarge { size, limit: MAX_ARTIFACT_BYTES }.into());
        }
        let bytes = content.clone();
        let actual = spawn_blocking(move || Digest::of(&bytes)).await.map_err(CallError::Verification)?;
        if actual != digest {
            return Err(CallError::ArtifactDigest(actual).into());
        }
        self.replica.backend().put_artifact(digest, content).await.map_err(CallError::from)?;
        Ok(Response::new(PutArtifactResponse {}))
    }

    async fn get_artifact(
        &self,
        request: Request<GetArtifactRequest>,
    ) -> Result<Response<GetArtifactResponse>, Status> {
        let digest = convert::digest("digest", &request.into_inner().digest)?;
        let content = self.replica.backend().artifact(digest).await.map_err(CallError::from)?;
        let content = content.ok_or(CallError::ArtifactUnknown(digest))?;
        Ok(Response::new(GetArtifactResponse { content }))
    }

    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let request = request.into_inner();
        let name = convert::leader_name(request.name)?;
        let candidate = convert::instance_id("candidate_id", request.candidate_id)?;
        let ttl = convert::leader_ttl(request.ttl)?;
        let backend = self.replica.backend();
        let leadership = backend.campaign(&name, candidate, ttl).await.map_err(CallError::from)?;
        Ok(Response::new(CampaignResponse {
            leader: leadership.leader == candidate,
            term: leadership.term.0,
            leader_id: leadership.leader.0,
        }))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        let request = request.into_inner();
        let name = convert::leader_name(request.name)?;
        let candidate = convert::instance_id("candidate_id", request.candidate_id)?;
        let backend = self.replica.backend();
        backend.resign(&name, candidate, Term(request.term)).await.map_err(CallError::from)?;
        Ok(Response::new(ResignResponse {}))
    }
}
