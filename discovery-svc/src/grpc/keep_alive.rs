//! A heartbeat stream: each heartbeat is answered; the end of the stream, however it comes, starts the lease's grace.

use std::sync::Arc;

use armature_contracts::discovery::v1::{KeepAliveRequest, KeepAliveResponse};
use armature_svc_kit::drain::Drain;
use futures_util::Stream;
use futures_util::stream;
use tonic::{Status, Streaming};

use super::convert;
use super::status::CallError;
use crate::domain::instance::{InstanceId, LeaseEpoch};
use crate::replica::{Attached, Replica};

struct Heartbeats {
    replica: Arc<Replica>,
    inbound: Streaming<KeepAliveRequest>,
    instance: Option<InstanceId>,
    attached: Option<Attached>,
}

impl Heartbeats {
    /// The answer to the next heartbeat; none at the end of the stream.
    async fn next(&mut self) -> Option<Result<KeepAliveResponse, Status>> {
        // A broken inbound stream ends this one; there is nobody to tell.
        let request = self.inbound.message().await.ok().flatten()?;
        Some(self.answer(request).map_err(Status::from))
    }

    fn answer(&mut self, request: KeepAliveRequest) -> Result<KeepAliveResponse, CallError> {
        let id = convert::instance_id("instance_id", request.instance_id)?;
        let instance = *self.instance.get_or_insert(id);
        if instance != id {
            return Err(CallError::OtherInstance(instance));
        }
        let lease = (id, LeaseEpoch(request.lease_epoch));
        let known = match &self.attached {
            Some(attached) if attached.lease() == lease => attached.heartbeat().is_ok(),
            _ => {
                // A new epoch on the same stream: the instance has registered again.
                self.attached = self.replica.attach(lease.0, lease.1).ok();
                self.attached.is_some()
            }
        };
        if !known {
            self.attached = None;
        }
        Ok(KeepAliveResponse { register_again: !known })
    }
}

/// Answers heartbeats until the stream ends, one is malformed, or the service stops.
pub fn answers(
    replica: Arc<Replica>,
    inbound: Streaming<KeepAliveRequest>,
    drain: Drain,
) -> impl Stream<Item = Result<KeepAliveResponse, Status>> + Send {
    let heartbeats = Heartbeats { replica, inbound, instance: None, attached: None };
    stream::unfold((Some(heartbeats), drain), |(heartbeats, drain)| async move {
        let mut heartbeats = heartbeats?;
        let answer = tokio::select! {
            answer = heartbeats.next() => answer?,
            () = drain.stopping() => return None,
        };
        let more = answer.is_ok().then_some(heartbeats);
        Some((answer, (more, drain)))
    })
}
