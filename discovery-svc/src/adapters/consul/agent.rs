//! The calls to the local agent, one per [`Step`].

use std::sync::Arc;
use std::time::Duration;

use super::client::{Ask, CallError, Client};
use super::entry;
use super::fences::Known;
use super::names::Names;
use super::plan::{Step, There, Wanted};
use crate::domain::instance::{Component, InstanceId, LeaseEpoch};
use crate::domain::store::elsewhere::Own;

/// The agent that this replica writes through, and the keys beside it.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Of the agent.
    pub client: Client,
    /// Of everything.
    pub names: Names,
    /// Of the checks.
    pub ttl: Duration,
    /// What Consul has of fences.
    pub fences: Arc<Known>,
}

/// What is to be done for one instance, in order.
#[derive(Debug)]
pub struct Job {
    /// Which.
    pub id: InstanceId,
    /// Its id is gone: says so first.
    pub fence: Option<(LeaseEpoch, Duration)>,
    /// At the agent.
    pub steps: Vec<Step>,
    /// What it should have.
    pub wanted: Option<(Own, Wanted)>,
    /// What it has.
    pub there: Option<There>,
}

/// How far a job came.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub id: InstanceId,
    /// What the agent has now.
    pub there: Option<There>,
    /// Whether all of it was done.
    pub result: Result<(), CallError>,
}

/// Whether the agent had what was to be changed.
enum Found {
    Yes,
    No,
}

impl Agent {
    /// Does a job as far as it goes.
    pub async fn work(&self, job: Job) -> Done {
        let Job { id, fence, steps, wanted, mut there } = job;
        let result = async {
            if let Some(fence) = fence {
                self.fences.write(&self.client, &self.names, id, fence).await?;
            }
            for step in steps {
                self.step(id, step, wanted.as_ref(), &mut there).await?;
            }
            Ok(())
        };
        let result = result.await;
        Done { id, there, result }
    }

    async fn step(
        &self,
        id: InstanceId,
        step: Step,
        wanted: Option<&(Own, Wanted)>,
        there: &mut Option<There>,
    ) -> Result<(), CallError> {
        if let (Step::Register, Some((own, wanted))) = (step, wanted) {
            let body = entry::registration(&self.names, own, &wanted.record, self.ttl);
            self.client.ask(Ask::put("register", "/v1/agent/service/register", body)).await?;
            *there = Some(There {
                component: own.instance.component,
                holder: own.holder,
                epoch: own.instance.epoch,
                record: wanted.record.clone(),
                leased: Some(wanted.leased),
                maintenance: there.as_ref().map_or(Some(false), |there| there.maintenance),
            });
            return Ok(());
        }
        let Some(known) = there else { return Ok(()) };
        let found = match step {
            Step::Register => return Ok(()),
            Step::Lease(leased) => {
                let found = self.lease(known.component, id, leased).await?;
                known.leased = Some(leased);
                found
            }
            Step::Maintenance(on) => {
                let reason = wanted.map_or("gone", |(own, _)| own.instance.status.as_str());
                let found = self.maintenance(known.component, id, on, reason).await?;
                known.maintenance = Some(on);
                found
            }
            Step::Deregister => {
                let path =
                    format!("/v1/agent/service/deregister/{}", self.names.service_id(known.component, id));
                found(self.client.ask(Ask::put("deregister", path, "")).await)?;
                Found::No
            }
        };
        if matches!(found, Found::No) {
            *there = None;
        }
        Ok(())
    }

    /// Renews a lease or lets it fail. The output is always the same, so that a renewal changes nothing in Consul's state.
    async fn lease(&self, component: Component, id: InstanceId, leased: bool) -> Result<Found, CallError> {
        let operation = if leased { "pass" } else { "fail" };
        let path = format!("/v1/agent/check/{operation}/{}", self.names.lease_check(component, id));
        found(self.client.ask(Ask::put(operation, path, "")).await)
    }

    async fn maintenance(
        &self,
        component: Component,
        id: InstanceId,
        on: bool,
        reason: &str,
    ) -> Result<Found, CallError> {
        let path = format!("/v1/agent/service/maintenance/{}", self.names.service_id(component, id));
        let ask = Ask::put("maintenance", path, "").with("enable", on).with("reason", reason);
        found(self.client.ask(ask).await)
    }
}

/// An agent that was emptied says so with 404, or, before Consul 1.11, with 500 and these words.
fn found(answer: Result<super::client::Answer, CallError>) -> Result<Found, CallError> {
    match answer {
        Ok(answer) if answer.found => Ok(Found::Yes),
        Ok(_) => Ok(Found::No),
        Err(CallError::Refused { status: 500, why, .. })
            if why.contains("does not have associated TTL") || why.contains("Unknown") =>
        {
            Ok(Found::No)
        }
        Err(error) => Err(error),
    }
}
