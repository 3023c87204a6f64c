//! Routers over gRPC: the first of the group's order that answers, the same reservation for all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::{InstanceId, ReservationKey};
use armature_contracts::router::v1::RouteRequest;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channels, KeepAlive};
use armature_svc_kit::limited;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::Status;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::releases::Releases;
use super::{convert, fault};
use crate::domain::leg::LegPlan;
use crate::domain::member::Members;
use crate::domain::rendezvous::{Failures, Group, order};
use crate::ports::{Decision, Routing};
use crate::session::prepare::Prepared;

/// How often failed routers are probed, and how long a probe may take.
const PROBE: Duration = Duration::from_secs(1);

/// The routers of the view.
#[derive(Clone)]
pub struct GrpcRouters {
    channels: Channels,
    members: watch::Receiver<Arc<Members>>,
    failures: Arc<Mutex<Failures>>,
    releases: Releases,
    failovers: Counter,
    /// Longest wait for a router's answer when the caller names no deadline.
    patience: Duration,
    origin: Instant,
}

impl GrpcRouters {
    /// The routers in `members`, as they change.
    pub fn new(
        channels: Channels,
        members: watch::Receiver<Arc<Members>>,
        releases: Releases,
        failovers: Counter,
        patience: Duration,
    ) -> Self {
        let failures = Arc::default();
        Self { channels, members, failures, releases, failovers, patience, origin: Instant::now() }
    }

    /// Probes failed routers, so that they are asked again once they are well. Runs until dropped.
    pub async fn probe(self) {
        let mut ticks = interval(PROBE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let members = self.members.borrow().clone();
            let pending = {
                let mut failures = self.failures();
                failures.keep(&members);
                failures.pending()
            };
            for router in pending {
                let Some(member) = members.get(&router) else { continue };
                let well = self.is_well(&member.address).await;
                self.failures().probed(router, well, self.origin.elapsed());
            }
        }
    }

    async fn is_well(&self, address: &str) -> bool {
        let Ok(address) = address.parse::<Address>() else { return false };
        let mut client = HealthClient::new(self.channels.with_keep_alive(&address, KeepAlive::EAGER));
        let answer = timeout(PROBE, client.check(HealthCheckRequest::default())).await;
        matches!(answer, Ok(Ok(answer)) if answer.get_ref().status() == ServingStatus::Serving)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        // The list is valid after any panic: each critical section is one insert or remove.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn candidates(&self, request: &Prepared) -> Vec<(InstanceId, String)> {
        let group = Group { namespace: &request.namespace, kv_identity: request.set.key.model.as_bytes() };
        let members = self.members.borrow().clone();
        let failures = self.failures();
        order(&members, group, &failures).into_iter().map(|it| (it.id, it.address.clone())).collect()
    }
}

impl Routing for GrpcRouters {
    fn route(
        &self,
        request: &Prepared,
        plan: &LegPlan,
        queue_until: Instant,
    ) -> BoxFuture<'static, Result<Decision, Fault>> {
        let routers = self.clone();
        let candidates = self.candidates(request);
        let mut question = convert::route(request, plan);
        let call = convert::within(&request.caller.call, self.patience);
        let key = plan.reservation;
        async move {
            let mut last = None;
            // The first once more at the end: a broken connection is not yet a dead router, and asking twice books once.
            let again = candidates.first().cloned();
            for (id, address) in candidates.into_iter().chain(again) {
                let Ok(parsed) = address.parse::<Address>() else { continue };
                let channel = routers.channels.with_keep_alive(&parsed, KeepAlive::EAGER);
                let mut client = limited!(RouterServiceClient::new(channel));
                let asked = Asked { releases: &routers.releases, router: &address, key, answered: false };
                // A pinned worker that has no room is no reason to wait: others may have.
                let wait = |question: &RouteRequest| {
                    let pinned = convert::is_pinned(question);
                    if pinned {
                        Duration::ZERO
                    } else {
                        queue_until.saturating_duration_since(Instant::now())
                    }
                };
                let ask = |question: &RouteRequest| {
                    convert::request(convert::queueing(question.clone(), wait(question)), &call)
                };
                let mut answer = client.route(ask(&question)).await;
                if answer.as_ref().is_err_and(|status| !goes_on(status)) && convert::unpin(&mut question) {
                    // The workers that a gateway chose cannot take it by now; a refusal has booked nothing.
                    answer = client.route(ask(&question)).await;
                }
                asked.answered();
                match answer {
                    Ok(answer) => match convert::decision(answer.into_inner(), &address) {
                        Some(decision) => return Ok(decision),
                        None => {
                            last = Some(Fault::new(Reason::Internal, "the router named no decode worker"))
                        }
                    },
                    Err(status) if goes_on(&status) => {
                        tracing::warn!(router = %id, %status, "router did not answer, asking the next");
                        routers.failures().failed(id);
                        routers.failovers.inc();
                        last = Some(unanswered(&status));
                    }
                    Err(status) => return Err(Fault::from_status(&status)),
                }
            }
            Err(last.unwrap_or_else(|| Fault::new(Reason::NoWorkers, "no router is known")))
        }
        .boxed()
    }

    fn release(&self, key: ReservationKey, router: &str) {
        self.releases.push(router, key);
    }
}

/// Whether the next router may know better: this one is away, or on its way out.
fn goes_on(status: &Status) -> bool {
    fault::is_transport(status) || Fault::from_status(status).reason == Reason::Draining
}

fn unanswered(status: &Status) -> Fault {
    Fault::new(Reason::NoWorkers, format!("no router answers: {}", status.message())).retry_after(PROBE)
}

/// A question on its way. When nobody waits for the answer any more, the router may still have booked.
struct Asked<'a> {
    releases: &'a Releases,
    router: &'a str,
    key: ReservationKey,
    answered: bool,
}

impl Asked<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.releases.push(self.router, self.key);
        }
    }
}
