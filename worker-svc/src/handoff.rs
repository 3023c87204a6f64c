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

use crate::domain::ids::{BlockId, RequestId, WindowIndex};
use crate::domain::sampled::Sampled;
use crate::domain::scheduler::Fallback;
use crate::grpc::wire_to as convert;
use crate::metrics::HandoffEnd;
use crate::transfer::{
    self, Commit, LandingEvent, LandingRequest, LandingSession, TransferId, TransferSecret,
};
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
        let attempt = Attempt {
            task: self,
            prefill_worker,
            session,
            outgoing,
            begun: false,
            done: false,
            is_last,
            all_landed: None,
        };
        attempt.lead(incoming).await
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

/// One transfer from one prefill worker, after it has taken the work.
struct Attempt<'a> {
    task: &'a mut Task,
    prefill_worker: WorkerRank,
    session: LandingSession,
    outgoing: mpsc::Sender<wire::PrefillRequest>,
    begun: bool,
    done: bool,
    is_last: bool,
    all_landed: Option<Commit>,
}

/// Why an attempt stops.
enum Stop {
    Committed,
    /// The request does not want the KV any more.
    Unwanted,
    Failed(String),
}

impl Attempt<'_> {
    async fn lead(mut self, mut incoming: tonic::Streaming<wire::PrefillResponse>) -> Ended {
        let stop = self.until_stop(&mut incoming).await;
        match stop {
            Stop::Committed => {
                self.task.worker.metrics.handoff(HandoffEnd::Committed);
                Ended::Over
            }
            Stop::Unwanted => {
                let abort = wire::Abort { reason: "not wanted any more".into() };
                let message = wire::prefill_request::Message::Abort(abort);
                // Best effort: the stream's end says the same.
                let _ = self.outgoing.try_send(wire::PrefillRequest { message: Some(message) });
                drop(incoming);
                self.task.worker.metrics.handoff(HandoffEnd::Unwanted);
                self.quiesce().await;
                Ended::Over
            }
            Stop::Failed(reason) if !self.begun => Task::refused(self.session, reason).await,
            Stop::Failed(reason) => {
                drop(incoming);
                self.task.worker.metrics.handoff(HandoffEnd::Broken);
                // First tokens that are known stream already: the rest is computed here.
                let again = !self.is_last && !self.done;
                let fallback = if again { Fallback::Again } else { self.task.last_resort(&reason) };
                tracing::warn!(prefill_worker = %self.prefill_worker, %reason, again, "hand-off broke after begin");
                self.task.fail(fallback);
                self.quiesce().await;
                if again { Ended::Broken(reason) } else { Ended::Over }
            }
        }
    }

    /// Waits until no write can arrive any more, then gives back what the scheduler has in quarantine.
    async fn quiesce(&self) {
        self.session.abort();
        self.session.quiesced().await;
        let request = self.task.request;
        self.task.worker.driver.with(|core, now| core.scheduler.quarantine_released(request, now));
    }

    async fn until_stop(&mut self, incoming: &mut tonic::Streaming<wire::PrefillResponse>) -> Stop {
        let progress = self.task.worker.limits.progress;
        loop {
            let step = tokio::select! {
                order = self.task.inbox.recv() => self.order(order).await,
                message = incoming.message() => match message {
                    Ok(Some(wire::PrefillResponse { message: Some(message) })) => self.message(message).await,
                    Ok(Some(_)) => Err(Stop::Failed("it sent an unknown message".into())),
                    Ok(None) => Err(Stop::Failed("it ended the transfer".into())),
                    Err(status) => Err(Stop::Failed(Fault::from_status(&status).to_string())),
                },
                event = self.session.next(), if self.all_landed.is_none() => self.landing_event(event).await,
                () = tokio::time::sleep(progress) => Err(Stop::Failed(format!("no progress for {progress:?}"))),
            };
            if let Err(stop) = step {
                return stop;
            }
        }
    }

    async fn order(&mut self, order: Option<Order>) -> Result<(), Stop> {
        match order {
            None | Some(Order::Abort) => Err(Stop::Unwanted),
            // Said once per promise, and this attempt has one.
            Some(Order::Readmitted { .. }) => Ok(()),
            Some(Order::Granted { window, tokens, blocks }) => {
                let tokens = convert::token_range(&tokens);
                let grant = self.session.grant(tokens, blocks).map_err(failed)?;
                self.scheduler(|core, request, now| core.scheduler.landing_started(request, window, now))?;
                self.send(wire::prefill_request::Message::Grant(convert::grant(&grant))).await
            }
        }
    }

    async fn message(&mut self, message: wire::prefill_response::Message) -> Result<(), Stop> {
        use wire::prefill_response::Message;
        match message {
            Message::Accepted(accepted) => {
                let acceptance = convert::acceptance(&accepted).map_err(failed)?;
                let chosen = self.session.accepted(acceptance).await.map_err(failed)?;
                self.task.worker.metrics.transport(&chosen);
                Ok(())
            }
            Message::Begin(_) => {
                self.begun = true;
                self.scheduler(|core, request, now| core.scheduler.landing_begin(request, now))
            }
            Message::PieceReady(piece) => {
                let piece = convert::piece_ready(self.session.transfer(), piece);
                self.session.piece_ready(piece).map_err(failed)
            }
            Message::Done(done) => {
                let landed = Landed { worker: self.prefill_worker, computed: done.computed_tokens };
                *self.task.landed.lock().unwrap_or_else(PoisonError::into_inner) = Some(landed);
                self.task.worker.prefill_used.note(self.task.plan.reservation, self.prefill_worker);
                let first: Vec<(u32, Sampled)> = convert::first_tokens(&done);
                if !first.is_empty() {
                    self.scheduler(|core, request, now| {
                        core.scheduler.landing_first_tokens(request, first, now)
                    })?;
                }
                self.done = true;
                self.acknowledge().await
            }
            Message::AckConfirmed(_) => {
                match self.all_landed {
                    None => return Err(Stop::Failed("it confirmed what was not acknowledged".into())),
                    Some(Commit::Now) => {}
                    Some(Commit::AfterAckConfirmed) => self.commit()?,
                }
                Err(Stop::Committed)
            }
            Message::Failed(failure) => Err(Stop::Failed(failure.reason)),
        }
    }

    async fn landing_event(&mut self, event: Option<LandingEvent>) -> Result<(), Stop> {
        match event {
            Some(LandingEvent::WindowLanded(window)) => {
                let window = WindowIndex(window.0);
                self.scheduler(|core, request, now| core.scheduler.landing_landed(request, window, now))
            }
            Some(LandingEvent::AllLanded(commit)) => {
                self.all_landed = Some(commit);
                let tokens = self.task.tokens.len();
                self.task
                    .worker
                    .metrics
                    .landed(tokens, self.task.worker.driver.kv().geometry().token_bytes());
                self.acknowledge().await
            }
            Some(LandingEvent::Failed(failure)) => Err(failed(failure)),
            None => Err(Stop::Failed("the transfer's session ended".into())),
        }
    }

    /// When every piece has landed and the first tokens are known: lets P go, and decoding start where that needs no
    /// more proof.
    async fn acknowledge(&mut self) -> Result<(), Stop> {
        let (Some(commit), true) = (self.all_landed, self.done) else { return Ok(()) };
        if commit == Commit::Now {
            self.commit()?;
        }
        self.send(wire::prefill_request::Message::Ack(wire::Ack {})).await
    }

    /// The KV is here and final: decoding starts, and others may reuse it.
    fn commit(&self) -> Result<(), Stop> {
        self.scheduler(|core, request, now| {
            core.scheduler.landing_complete(request, now)?;
            core.scheduler.landing_committed(request, now)
        })
    }

    /// Runs a step of the scheduler's landing; one that it refuses is not wanted any more.
    fn scheduler<E: std::fmt::Display>(
        &self,
        step: impl FnOnce(&mut crate::driver::Core, RequestId, crate::domain::time::Time) -> Result<(), E>,
    ) -> Result<(), Stop> {
        let request = self.task.request;
        self.task.worker.driver.with(|core, now| step(core, request, now)).map_err(|error| {
            tracing::debug!(%error, "landing step refused");
            Stop::Unwanted
        })
    }

    async fn send(&self, message: wire::prefill_request::Message) -> Result<(), Stop> {
        let sent = self.outgoing.send(wire::PrefillRequest { message: Some(message) }).await;
        sent.map_err(|_| Stop::Failed("its stream is closed".into()))
    }
}

fn failed(error: impl std::fmt::Display) -> Stop {
    Stop::Failed(error.to_string())
}
