//! A router that names the pinned worker, or the first of its list that is not excluded.

use std::sync::{Arc, Mutex};

use armature_contracts::error::{Fault, Reason};
use armature_contracts::inference::v1::ReservationKey;
use armature_contracts::kv::v1::WorkerRank;
use armature_contracts::router::v1 as wire;
use armature_contracts::router::v1::router_service_server::RouterService;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct FakeRouter {
    pub(crate) name: &'static str,
    /// (id, address), in order of preference.
    pub(crate) workers: Arc<Mutex<Vec<(u64, String)>>>,
    pub(crate) refusal: Arc<Mutex<Option<Fault>>>,
    pub(crate) asked: Arc<watch::Sender<Vec<wire::RouteRequest>>>,
    pub(crate) released: Arc<watch::Sender<Vec<ReservationKey>>>,
    /// Questions that are never answered.
    pub(crate) silent: Arc<Mutex<bool>>,
}

impl FakeRouter {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            workers: Arc::default(),
            refusal: Arc::default(),
            asked: Arc::new(watch::channel(Vec::new()).0),
            released: Arc::new(watch::channel(Vec::new()).0),
            silent: Arc::default(),
        }
    }

    pub(crate) fn asked(&self) -> Vec<wire::RouteRequest> {
        self.asked.borrow().clone()
    }

    fn choose(&self, request: &wire::RouteRequest) -> Result<wire::RouteResponse, Status> {
        if let Some(fault) = self.refusal.lock().unwrap().clone() {
            return Err(fault.into());
        }
        let constraints = request.constraints.clone().unwrap_or_default();
        let (excluded, pin) = (constraints.exclude, constraints.pin_decode);
        let mut workers = self.workers.lock().unwrap().clone();
        if let Some(pin) = pin {
            workers.retain(|(id, _)| *id == pin.instance_id);
            if workers.is_empty() {
                return Err(Fault::new(Reason::InstanceNotEligible, "not a worker of this model").into());
            }
        }
        let free = workers.into_iter().find(|(id, _)| !excluded.iter().any(|it| it.instance_id == *id));
        let Some((id, address)) = free else {
            return Err(Fault::new(Reason::NoWorkers, "every worker is excluded").into());
        };
        let worker = Some(WorkerRank { instance_id: id, dp_rank: 0 });
        Ok(wire::RouteResponse {
            decode: Some(wire::Target { worker, address, matched_blocks: 0 }),
            decision_id: format!("{}-1", self.name),
            ..Default::default()
        })
    }
}

#[tonic::async_trait]
impl RouterService for FakeRouter {
    async fn route(
        &self,
        request: Request<wire::RouteRequest>,
    ) -> Result<Response<wire::RouteResponse>, Status> {
        let request = request.into_inner();
        self.asked.send_modify(|asked| asked.push(request.clone()));
        let silent = *self.silent.lock().unwrap();
        if silent {
            std::future::pending::<()>().await;
        }
        self.choose(&request).map(Response::new)
    }

    async fn release(
        &self,
        request: Request<wire::ReleaseRequest>,
    ) -> Result<Response<wire::ReleaseResponse>, Status> {
        self.released.send_modify(|keys| keys.extend(request.into_inner().reservations));
        Ok(Response::new(wire::ReleaseResponse {}))
    }

    async fn explain(
        &self,
        _: Request<wire::ExplainRequest>,
    ) -> Result<Response<wire::ExplainResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn list_workers(
        &self,
        _: Request<wire::ListWorkersRequest>,
    ) -> Result<Response<wire::ListWorkersResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }
}
