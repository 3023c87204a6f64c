//! Workers over gRPC. A worker that hangs is noticed by pings (5 s + 5 s); dropping a stream resets it, which cancels the work.

use armature_contracts::error::{Fault, Reason};
use armature_contracts::ids::ReservationKey;
use armature_contracts::worker::v1::worker_service_client::WorkerServiceClient;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::Channels;
use armature_svc_kit::limited;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tonic::Status;

use super::choice_ends::ChoiceEnds;
use super::{convert, fault};
use crate::domain::leg::{Failure, LegPlan};
use crate::ports::{Decision, Target, WorkerStream, Workers};
use crate::session::prepare::Prepared;

/// Workers by the addresses that routers name.
#[derive(Debug, Clone)]
pub struct GrpcWorkers {
    channels: Channels,
    choice_ends: ChoiceEnds,
}

impl GrpcWorkers {
    /// Workers over `channels`.
    pub fn new(channels: Channels, choice_ends: ChoiceEnds) -> Self {
        Self { channels, choice_ends }
    }
}

impl Workers for GrpcWorkers {
    fn generate(
        &self,
        request: &Prepared,
        plan: &LegPlan,
        decision: &Decision,
    ) -> BoxFuture<'static, Result<WorkerStream, Failure>> {
        let address: Address = match decision.decode.address.parse() {
            Ok(address) => address,
            Err(error) => {
                let fault = Fault::new(Reason::WorkerLost, format!("a router named the worker at {error}"));
                return std::future::ready(Err(Failure { fault, contacted: false })).boxed();
            }
        };
        let mut client = limited!(WorkerServiceClient::new(self.channels.to(&address)));
        let call = convert::request(convert::generate(request, plan, decision), &request.caller.call);
        async move {
            let stream = client.generate(call).await.map_err(failure)?.into_inner();
            let events = stream.filter_map(async |message| match message {
                Ok(message) => convert::event(message).map(Ok),
                Err(status) => Some(Err(failure(status))),
            });
            Ok(events.boxed())
        }
        .boxed()
    }

    fn end_choice(&self, worker: &Target, leg: ReservationKey, choice: u32) {
        self.choice_ends.push(&worker.address, leg, choice);
    }
}

#[allow(clippy::needless_pass_by_value, reason = "map_err hands it over")]
fn failure(status: Status) -> Failure {
    Failure { contacted: !fault::is_unconnected(&status), fault: fault::of_worker(&status) }
}
