//! Generate: admit, then stream tokens until every choice has ended.

use std::sync::Arc;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::worker::v1 as wire;
use armature_svc_kit::call::Call;
use armature_svc_kit::drain::InFlight;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert::{self, Asked, Parsed};
use super::status;
use crate::domain::request::{FinishReason, RequestKind};
use crate::domain::sampled::Sampled;
use crate::domain::scheduler::Effect;
use crate::driver::{Event, Ticket};
use crate::handoff::{Handoff, Landed, Plan};
use crate::worker::Served;

/// Messages that wait for a slow client; more tokens wait in the request's own events.
const BUFFER: usize = 64;

type Answer = Result<wire::GenerateResponse, Status>;

pub(super) fn start(
    worker: &Arc<Served>,
    request: wire::GenerateRequest,
    call: Call,
) -> Result<ReceiverStream<Answer>, Status> {
    let in_flight = worker.drain.enter().map_err(|_| status::draining())?;
    let parsed = Asked {
        context: request.context.as_ref(),
        worker: request.worker.as_ref(),
        prompt: &request.prompt_token_ids,
        blocks: request.blocks.as_ref(),
        sampling: request.sampling.as_ref(),
        stop: request.stop.as_ref(),
        choices: &request.choices,
    }
    .parse(&worker.identity, worker.backend.rank())?;
    // Prefill workers are named to those that can lead a hand-off.
    let remote = !request.prefill.is_empty() && worker.own.is_some();
    if !remote && !request.prefill.is_empty() && request.local_prefill_forbidden {
        return Err(Fault::new(Reason::PrefillLost, "this worker's engine takes no KV from others").into());
    }
    let kind = if remote { RequestKind::Landing } else { RequestKind::Local };
    let deadline = call.deadline.map(|at| worker.backend.time_at(at.into_std()));
    let ticket = Arc::clone(&worker.backend).submit(parsed.job(kind, deadline)).map_err(|refusal| {
        worker.metrics.refused(&refusal);
        status::refusal(&refusal)
    })?;
    worker.metrics.requests.inc();
    let (answers, stream) = mpsc::channel(BUFFER);
    let plan = remote.then(|| Plan::new(request, parsed.reservation, call));
    let run = Run {
        worker: Arc::clone(worker),
        parsed,
        ticket,
        answers,
        handoff: None,
        started: false,
        generated: 0,
    };
    worker.tasks.spawn(run.go(plan, in_flight));
    Ok(ReceiverStream::new(stream))
}

struct Run {
    worker: Arc<Served>,
    parsed: Parsed,
    ticket: Ticket,
    answers: mpsc::Sender<Answer>,
    handoff: Option<Handoff>,
    started: bool,
    generated: u64,
}

impl Run {
    async fn go(mut self, mut plan: Option<Plan>, _in_flight: InFlight) {
        let mut gone = false;
        loop {
            let event = tokio::select! {
                biased;
                () = self.answers.closed(), if !gone => {
                    gone = true;
                    self.worker.metrics.disconnects.inc();
                    self.ticket.cancel();
                    continue;
                }
                event = self.ticket.next() => event,
            };
            match event {
                None => {
                    self.say(Err(Fault::new(Reason::EngineFailed, "the engine has ended").into())).await;
                    break;
                }
                Some(Event::Admitted) => self.say_started(0).await,
                Some(Event::Lost(fault)) => {
                    let fault = fault.work_done(self.generated > 0);
                    self.say(Err(fault.into())).await;
                    break;
                }
                Some(Event::Layer(_)) => {}
                Some(Event::Effect(effect)) => {
                    if self.take(effect, &mut plan).await {
                        break;
                    }
                }
            }
        }
    }

    /// Acts on one effect; true when it was the last.
    async fn take(&mut self, effect: Effect, plan: &mut Option<Plan>) -> bool {
        match effect {
            Effect::Token { choice, position, sampled, finish, .. } => {
                self.token(choice, position, Some(sampled), finish).await;
            }
            Effect::ChoiceEnded { choice, finish, .. } => {
                self.token(choice, 0, None, Some(finish)).await;
            }
            Effect::LandingAdmitted { from_token, prompt_len, request } => {
                self.say_started(from_token as u32).await;
                if let Some(handoff) = &self.handoff {
                    handoff.readmitted(from_token..prompt_len);
                } else if let (Some(plan), Some(own)) = (plan.take(), &self.worker.own) {
                    self.handoff = Some(Handoff::start(own, plan, request, from_token..prompt_len));
                }
            }
            Effect::Granted { window, tokens, blocks, .. } => {
                if let Some(handoff) = &self.handoff {
                    handoff.granted(window, tokens, blocks);
                }
            }
            Effect::LandingAbort { .. } => {
                if let Some(handoff) = &self.handoff {
                    handoff.abort();
                }
            }
            Effect::Finished { usage, .. } => {
                let landed = self.landed();
                let usage = convert::usage(&usage, landed.map_or(0, |landed| landed.computed));
                let finished = wire::GenerateFinished {
                    usage: Some(usage),
                    prefill_worker: landed.map(|landed| landed.worker.into()),
                };
                self.event(wire::generate_response::Event::Finished(finished)).await;
                return true;
            }
            Effect::Failed { failure, .. } => {
                let fault = status::failure(&failure, self.generated > 0);
                self.say(Err(fault.into())).await;
                return true;
            }
            Effect::Settled { .. }
            | Effect::SourceAdmitted { .. }
            | Effect::SourceProgress { .. }
            | Effect::FirstTokens { .. } => {}
        }
        false
    }

    fn landed(&self) -> Option<Landed> {
        self.handoff.as_ref().and_then(Handoff::landed)
    }

    async fn say_started(&mut self, cached_tokens: u32) {
        if !std::mem::replace(&mut self.started, true) {
            let started = wire::GenerateStarted { cached_tokens };
            self.event(wire::generate_response::Event::Started(started)).await;
        }
    }

    async fn token(
        &mut self,
        choice: u32,
        position: u32,
        sampled: Option<Sampled>,
        finish: Option<FinishReason>,
    ) {
        if finish == Some(FinishReason::Deadline) {
            let text = "the deadline passed before the last token";
            let fault = Fault::new(Reason::DeadlineExceeded, text).work_done(self.generated > 0);
            return self.say(Err(fault.into())).await;
        }
        self.generated += u64::from(sampled.is_some());
        let wants_logprobs = self.parsed.wants_logprobs;
        let delta = wire::TokenDelta {
            choice,
            position,
            tokens: sampled.iter().map(|sampled| convert::token_info(sampled, wants_logprobs)).collect(),
            finish_reason: finish.map(convert::finish_reason).unwrap_or_default().into(),
        };
        self.event(wire::generate_response::Event::Delta(delta)).await;
    }

    async fn event(&mut self, event: wire::generate_response::Event) {
        self.say(Ok(wire::GenerateResponse { event: Some(event) })).await;
    }

    async fn say(&mut self, answer: Answer) {
        // A client that is gone is noticed by the loop, which cancels.
        let _ = self.answers.send(answer).await;
    }
}
