//! The decode side of a hand-off: one task that leads the transfer of one request.
//!
//! ```text
//!   Route named P, alternates
//!        │ open transfer, Prefill(start)
//!   refused or dead before Begin ──> next alternate
//!        │ Accepted, Begin            (scheduler: PROMISED -> windows GRANTED)
//!        │ grants ──> pieces land     (LANDING -> LANDED)
//!        │ PrefillDone: first tokens stream at once
//!        │ all landed: Ack ──> AckConfirmed   (COMMITTED)
//!   failed after Begin ──> quarantine until no write can arrive; admitted again for the next alternate, and without
//!                          one prefilled here, or PREFILL_LOST
//! ```
//!
//! tcp: COMMITTED when the last piece has landed, for nothing at the source can change what was sent. shm: when
//! AckConfirmed has proven that the source was pinned throughout. Decoding starts at COMMITTED.

mod attempt;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use armature_contracts::error::Fault;
use armature_contracts::ids::{ReservationKey, WorkerRank};
use armature_contracts::worker::v1 as wire;
use armature_svc_kit::address::Address;
use armature_svc_kit::call::Call;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use wire::worker_service_client::WorkerServiceClient;

use self::attempt::Attempt;
use crate::domain::ids::{BlockId, RequestId, WindowIndex};
use crate::domain::scheduler::Fallback;
use crate::grpc::wire_to as convert;
use crate::metrics::HandoffEnd;
use crate::transfer::{self, LandingRequest, LandingSession, TransferId, TransferSecret};
use crate::worker::Worker;

/// Messages to the prefill worker that wait to be sent; grants come no faster than windows land.
const OUTGOING: usize = 16;

/// What a request asks of prefill workers.
#[derive(Debug)]
pub(crate) struct Plan {
    /// In the order in which they are tried.
    targets: Vec<wire::PrefillTarget>,
    /// PrefillStart without what differs by target and transfer.
    start: wire::PrefillStart,
    reservation: ReservationKey,
    local_forbidden: bool,
    call: Call,
}

impl Plan {
    /// The plan of a Generate request that names prefill workers.
    pub(crate) fn new(request: wire::GenerateRequest, reservation: ReservationKey, call: Call) -> Self {
        Self {
            targets: request.prefill,
            start: wire::PrefillStart {
                context: request.context,
                worker: None,
                decode_worker: request.worker,
                prompt_token_ids: request.prompt_token_ids,
                blocks: request.blocks,
                from_token: 0,
                sampling: request.sampling,
                stop: request.stop,
                choices: request.choices,
                compat_key: Default::default(),
                shard: None,
                handoff: None,
            },
            reservation,
            local_forbidden: request.local_prefill_forbidden,
            call,
        }
    }
}

/// What came of a hand-off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Landed {
    /// The prefill worker.
    pub(crate) worker: WorkerRank,
    /// Prompt tokens it computed.
    pub(crate) computed: u32,
}

/// Handle of a hand-off in progress. Dropping it aborts what is not yet committed.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// Unbounded, but holds no more than the windows of one transfer.
    orders: mpsc::UnboundedSender<Order>,
    landed: Arc<Mutex<Option<Landed>>>,
}

#[derive(Debug)]
enum Order {
    Granted { window: WindowIndex, tokens: Range<usize>, blocks: Vec<BlockId> },
    Readmitted { tokens: Range<usize> },
    Abort,
}

impl Handoff {
    /// Starts to fetch the KV of `tokens` for `request`.
    pub(crate) fn start(worker: &Arc<Worker>, plan: Plan, request: RequestId, tokens: Range<usize>) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let landed = Arc::new(Mutex::new(None));
        let task =
            Task { worker: Arc::clone(worker), plan, request, tokens, inbox, landed: Arc::clone(&landed) };
        worker.tasks.spawn(task.run());
        Self { orders, landed }
    }

    /// Blocks are there for a window.
    pub(crate) fn granted(&self, window: WindowIndex, tokens: Range<usize>, blocks: Vec<BlockId>) {
        let _ = self.orders.send(Order::Granted { window, tokens, blocks });
    }

    /// Capacity is promised once more, after a transfer that broke.
    pub(crate) fn readmitted(&self, tokens: Range<usize>) {
        let _ = self.orders.send(Order::Readmitted { tokens });
    }

    /// The KV is not wanted any more.
    pub(crate) fn abort(&self) {
        let _ = self.orders.send(Order::Abort);
    }

    /// The prefill worker that computed the prompt, once it has.
    pub(crate) fn landed(&self) -> Option<Landed> {
        *self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Task {
    worker: Arc<Worker>,
    plan: Plan,
    request: RequestId,
    tokens: Range<usize>,
    inbox: mpsc::UnboundedReceiver<Order>,
    landed: Arc<Mutex<Option<Landed>>>,
}

/// How one attempt ended.
enum Ended {
    /// Committed, broken or not wanted any more; everything is cleaned up.
    Over,
    /// The next target may do better; nothing was granted.
    Refused(String),
    /// Pages were perhaps granted, and can no longer be written. The scheduler has been told that the next target is tried.
    Broken(String),
}

impl Task {
    async fn run(mut self) {
        let mut reasons = Vec::new();
        let mut targets = VecDeque::from(std::mem::take(&mut self.plan.targets));
        while let Some(target) = targets.pop_front() {
            let name = target.worker.map(|rank| WorkerRank::from(rank).to_string()).unwrap_or_default();
            let reason = match self.attempt(&target, targets.is_empty()).await {
                Ended::Over => return,
                Ended::Refused(reason) => {
                    self.worker.metrics.handoff(HandoffEnd::Refused);
                    reason
                }
                Ended::Broken(reason) => {
                    let Some(tokens) = self.readmitted().await else { return };
                    self.tokens = tokens;
                    reason
                }
            };
            tracing::warn!(prefill_worker = name, %reason, "hand-off failed");
            reasons.push(format!("{name}: {reason}"));
        }
        self.fail(self.last_resort(&reasons.join("; ")));
    }

    /// Waits for the promise that the next target's transfer needs; `None` when the KV is not wanted any more.
    async fn readmitted(&mut self) -> Option<Range<usize>> {
        loop {
            match self.inbox.recv().await? {
                Order::Readmitted { tokens } => return Some(tokens),
                Order::Abort => return None,
                // Of the broken transfer: its blocks have been given back.
                Order::Granted { .. } => {}
            }
        }
    }

    /// What becomes of the request when no target is left.
    fn last_resort(&self, reason: &str) -> Fallback {
        if self.plan.local_forbidden { Fallback::Fail(reason.to_owned()) } else { Fallback::Local }
    }

    /// Tells the scheduler that this transfer is lost. A request that has ended meanwhile does not mind.
    fn fail(&self, fallback: Fallback) {
        self.worker.driver.with(|core, now| {
            let _ = core.scheduler.landing_failed(self.request, fallback, now);
        });
    }

    async fn attempt(&mut self, target: &wire::PrefillTarget, is_last: bool) -> Ended {
        let Some(prefill_worker) = target.worker.map(WorkerRank::from) else {
            return Ended::Refused("it has no id".into());
        };
        let Ok(address) = target.address.parse::<Address>() else {
            return Ended::Refused(format!("its address {:?} is malformed", target.address));
        };
        let limits = self.worker.limits;
        let wanted = LandingRequest {
            transfer: TransferId(rand::random()),
            secret: TransferSecret::new(rand::random()),
            tokens: convert::token_range(&self.tokens),
            deadline: Instant::now() + limits.hold,
        };
        let (offer, session) = match self.worker.landing.open(wanted) {
            Ok(opened) => opened,
            Err(error) => return Ended::Refused(error.to_string()),
        };
        let start = self.start_message(target, &offer);
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        // The channel is empty: this does not wait.
        let _ = outgoing.send(convert::prefill_start(start)).await;
        let stub = WorkerServiceClient::new(self.worker.channels.to(&address));
        let mut client = armature_svc_kit::limited!(stub);
        let call = self.plan.call.clone().scope(client.prefill(ReceiverStream::new(messages)));
        let incoming = tokio::select! {
            answer = timeout(limits.accept, call) => match answer {
                Ok(Ok(answer)) => answer.into_inner(),
                Ok(Err(status)) => return Self::refused(session, Fault::from_status(&status).to_string()).await,
                Err(_) => return Self::refused(session, "no answer in time".into()).await,
            },
            // Nothing has been granted: whatever the order is, it ends this.
            _ = self.inbox.recv() => {
                Self::refused(session, String::new()).await;
                return Ended::Over;
            }
        };
        Attempt::new(self, prefill_worker, session, outgoing, is_last).lead(incoming).await
    }

    async fn refused(session: LandingSession, reason: String) -> Ended {
        session.abort();
        session.quiesced().await;
        Ended::Refused(reason)
    }

    fn start_message(&self, target: &wire::PrefillTarget, offer: &transfer::Offer) -> wire::PrefillStart {
        wire::PrefillStart {
            worker: target.worker,
            from_token: self.tokens.start as u32,
            compat_key: self.worker.identity.compat_key.to_vec().into(),
            shard: Some(self.worker.identity.shard()),
            handoff: Some(wire::prefill_start::Handoff::Landing(convert::landing(offer))),
            ..self.plan.start.clone()
        }
    }
}
