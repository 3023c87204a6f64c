//! One transfer from one prefill worker, after it has taken the work.

use std::sync::PoisonError;

use armature_contracts::error::Fault;
use armature_contracts::ids::WorkerRank;
use armature_contracts::worker::v1 as wire;
use tokio::sync::mpsc;

use super::{Ended, Landed, Order, Task};
use crate::domain::ids::{RequestId, WindowIndex};
use crate::domain::sampled::Sampled;
use crate::domain::scheduler::Fallback;
use crate::grpc::wire_to as convert;
use crate::metrics::HandoffEnd;
use crate::transfer::{Commit, LandingEvent, LandingSession};

/// A transfer in progress.
pub(super) struct Attempt<'a> {
    task: &'a mut Task,
    prefill_worker: WorkerRank,
    session: LandingSession,
    outgoing: mpsc::Sender<wire::PrefillRequest>,
    /// P has begun: pages may have been granted.
    begun: bool,
    /// P has said PrefillDone.
    done: bool,
    /// No other target is left.
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

impl<'a> Attempt<'a> {
    pub(super) fn new(
        task: &'a mut Task,
        prefill_worker: WorkerRank,
        session: LandingSession,
        outgoing: mpsc::Sender<wire::PrefillRequest>,
        is_last: bool,
    ) -> Self {
        Self { task, prefill_worker, session, outgoing, begun: false, done: false, is_last, all_landed: None }
    }

    /// Leads the transfer to its end.
    pub(super) async fn lead(mut self, mut incoming: tonic::Streaming<wire::PrefillResponse>) -> Ended {
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
