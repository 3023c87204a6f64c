//! RouterService: converts, asks the state, answers. Holds no state of its own.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::Fault;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::router_service_server::RouterService;
use armature_contracts::router::v1::{
    ExplainRequest, ExplainResponse, ListWorkersRequest, ListWorkersResponse, ReleaseRequest,
    ReleaseResponse, RouteRequest, RouteResponse,
};
use armature_svc_kit::call::Call;
use armature_svc_kit::channel::Channels;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::limited;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::convert::{self, DecisionId};
use super::status;
use crate::domain::router::Routed;
use crate::metrics::{DecisionLabels, ReasonLabel};
use crate::ports::Routers;
use crate::shared::Shared;

/// Metadata of an answer to Route.
const DECISION_ID: &str = "x-armature-decision-id";

/// The service.
pub struct RouterEndpoint {
    /// The state.
    pub shared: Arc<Shared>,
    /// New work is refused when this says so.
    pub drain: Drain,
    /// Ways to other routers.
    pub channels: Channels,
    /// Where other routers are.
    pub routers: Arc<dyn Routers>,
    /// Longest wait of a request for room.
    pub max_wait: Duration,
}

impl RouterEndpoint {
    async fn decide(&self, message: RouteRequest, call: Option<Call>) -> Result<RouteResponse, Fault> {
        let _work = self.drain.enter().map_err(status::draining_fault)?;
        let began = Instant::now();
        let left = call.and_then(|call| call.remaining(began));
        let claim = convert::claim(&message, left, self.max_wait, self.shared.now())?;
        let request = convert::request(message)?;
        let (answer, waited) = self.shared.route(&request, &claim).await;
        if !waited {
            self.shared.metrics.route_seconds.observe(began.elapsed().as_secs_f64());
        }
        let answer = answer.map_err(|error| status::route_fault(&error))?;
        self.count(&answer, request.prompt.len());
        Ok(convert::routed(&answer, self.shared.instance()))
    }

    fn count(&self, answer: &Routed, prompt_blocks: usize) {
        let metrics = &self.shared.metrics;
        let policy = self.shared.with(|router| router.settings().policy.name());
        let computes = answer.prefill.first();
        let prefill = if computes.is_some() { "remote" } else { "local" };
        metrics.decisions.get_or_create(&DecisionLabels { policy, prefill }).inc();
        metrics.prompt_blocks.inc_by(prompt_blocks as u64);
        metrics.hit_blocks.inc_by(u64::from(computes.unwrap_or(&answer.decode).matched.0));
    }

    async fn forward(&self, id: DecisionId, request: ExplainRequest) -> Result<ExplainResponse, Status> {
        let unknown = || status::unknown_decision(&id.to_string());
        let address = self.routers.address(id.router).ok_or_else(unknown)?;
        let mut client = limited!(RouterServiceClient::new(self.channels.to(&address)));
        Ok(client.explain(request).await?.into_inner())
    }
}

#[tonic::async_trait]
impl RouterService for RouterEndpoint {
    async fn route(&self, request: Request<RouteRequest>) -> Result<Response<RouteResponse>, Status> {
        let call = request.extensions().get::<Call>().cloned();
        match self.decide(request.into_inner(), call).await {
            Ok(answer) => {
                let id = answer.decision_id.parse();
                let mut response = Response::new(answer);
                if let Ok(id) = id {
                    response.metadata_mut().insert(DECISION_ID, id);
                }
                Ok(response)
            }
            Err(fault) => {
                let reason = fault.reason.as_str();
                self.shared.metrics.refusals.get_or_create(&ReasonLabel { reason }).inc();
                Err(fault.into())
            }
        }
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<ReleaseResponse>, Status> {
        let keys = convert::released(request.get_ref())?;
        self.shared.release(&keys);
        Ok(Response::new(ReleaseResponse {}))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        let request = request.into_inner();
        let id: DecisionId = request.decision_id.parse::<DecisionId>()?;
        if id.router != self.shared.instance() {
            return Ok(Response::new(self.forward(id, request).await?));
        }
        let otherwise =
            request.otherwise.map(|weights| convert::overrides("otherwise", weights)).transpose()?;
        let now = self.shared.now();
        let explanation = self.shared.with(|router| match otherwise {
            Some(weights) => router.explain_under(id.number, weights, now),
            None => router.explain(id.number, now),
        });
        let explanation = explanation.ok_or_else(|| status::unknown_decision(&id.to_string()))?;
        Ok(Response::new(convert::explanation(id, &explanation)))
    }

    async fn list_workers(
        &self,
        request: Request<ListWorkersRequest>,
    ) -> Result<Response<ListWorkersResponse>, Status> {
        let namespace = request.into_inner().namespace;
        let namespace = if namespace.is_empty() { "default" } else { &namespace };
        let now = self.shared.now();
        let (views, settings) = self.shared.with(|router| (router.views(), router.settings()));
        let here = views.iter().filter(|view| *view.worker.namespace == *namespace);
        let workers = here.map(|view| convert::worker_view(view, now)).collect();
        Ok(Response::new(ListWorkersResponse { workers, policy: settings.policy.name().into() }))
    }
}
