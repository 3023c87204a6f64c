//! Prefill: compute a prompt for a decode worker, send its KV, keep it pinned until that is acknowledged.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use armature_contracts::worker::v1 as wire;
use armature_svc_kit::drain::InFlight;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::convert::{self, Asked, Parsed};
use super::{status, wire_to};
use crate::domain::ids::BlockId;
use crate::domain::request::RequestKind;
use crate::domain::scheduler::Effect;
use crate::driver::{Event, Ticket};
use crate::faults::FaultPoint;
use crate::transfer::{AcceptError, Acceptance, LayerRange, SourceEvent, SourceSession, TransferId};
use crate::worker::Worker;

/// Longest wait for the first message of the stream.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that wait for a slow decode worker.
const BUFFER: usize = 64;

type Answer = Result<wire::PrefillResponse, Status>;

pub(super) async fn start(
    worker: &Arc<Worker>,
    mut incoming: Streaming<wire::PrefillRequest>,
) -> Result<ReceiverStream<Answer>, Status> {
    let in_flight = worker.drain.enter().map_err(|_| status::draining())?;
    let first = timeout(START_TIMEOUT, incoming.message())
        .await
        .map_err(|_| Fault::new(Reason::DeadlineExceeded, "no start message within 5 s"))??;
    let Some(wire::prefill_request::Message::Start(start)) = first.and_then(|first| first.message) else {
        return Err(Fault::invalid("message", "the first message of a transfer is start").into());
    };
    let parsed = parse(worker, &start)?;
    let length = parsed.prompt.len() + parsed.choices[0].generated.len();
    let from = start.from_token as usize;
    if from >= length {
        return Err(
            Fault::invalid("from_token", format!("{from} is not below the length of {length}")).into()
        );
    }
    let Some(wire::prefill_start::Handoff::Landing(landing)) = &start.handoff else {
        return Err(Fault::invalid("handoff", "this engine hands KV to landings only").into());
    };
    let offer = wire_to::offer(landing, wire_to::token_range(&(from..length)))
        .map_err(|error| Fault::invalid("handoff.landing", error.to_string()))?;
    let transfer = offer.transfer;
    let deadline = Instant::now() + worker.limits.hold;
    let (acceptance, session) =
        worker.source.accept(offer, deadline).map_err(|error| cannot_accept(&error))?;
    let job = parsed.job(RequestKind::Source { from_token: from }, None);
    let ticket = match worker.driver.submit(job) {
        Ok(ticket) => ticket,
        Err(refusal) => {
            session.abort();
            worker.metrics.refused(&refusal);
            return Err(status::refusal(&refusal).into());
        }
    };
    worker.metrics.prefills.inc();
    let (answers, stream) = mpsc::channel(BUFFER);
    let run = Run {
        worker: Arc::clone(worker),
        parsed,
        ticket,
        session,
        transfer,
        answers,
        from,
        length,
        cached: 0,
    };
    worker.tasks.spawn(run.go(acceptance, incoming, in_flight));
    Ok(ReceiverStream::new(stream))
}

fn parse(worker: &Worker, start: &wire::PrefillStart) -> Result<Parsed, Fault> {
    let me = &worker.identity;
    let parsed = Asked {
        context: start.context.as_ref(),
        worker: start.worker.as_ref(),
        prompt: &start.prompt_token_ids,
        blocks: start.blocks.as_ref(),
        sampling: start.sampling.as_ref(),
        stop: start.stop.as_ref(),
        choices: &start.choices,
    }
    .parse(me, worker.driver.rank())?;
    if start.compat_key.as_ref() != me.compat_key {
        let text = "compatibility keys differ: model, layout, rope or kernel are not the same";
        return Err(Fault::new(Reason::KvIncompatible, text));
    }
    if start.shard != Some(me.shard()) {
        return Err(Fault::new(Reason::KvShardMismatch, "the shards of the two workers differ"));
    }
    Ok(parsed)
}

fn cannot_accept(error: &AcceptError) -> Fault {
    let reason = match error {
        AcceptError::Open(_) => Reason::WorkerBusy,
        AcceptError::NoTransport(_) => Reason::KvIncompatible,
    };
    Fault::new(reason, error.to_string())
}

struct Run {
    worker: Arc<Worker>,
    parsed: Parsed,
    ticket: Ticket,
    session: SourceSession,
    transfer: TransferId,
    answers: mpsc::Sender<Answer>,
    /// First token that D lacks.
    from: usize,
    /// Length of the sequence.
    length: usize,
    /// Tokens found in this worker's own cache.
    cached: usize,
}

/// The transfer is over, with something to tell D or without.
struct Over(Option<wire::prefill_response::Message>);

impl Over {
    fn failed(reason: impl std::fmt::Display) -> Self {
        let failure = wire::TransferFailed { reason: reason.to_string() };
        Self(Some(wire::prefill_response::Message::Failed(failure)))
    }
}

impl Run {
    async fn go(
        mut self,
        acceptance: Acceptance,
        incoming: Streaming<wire::PrefillRequest>,
        _in_flight: InFlight,
    ) {
        let Over(last) = self.until_over(acceptance, incoming).await;
        // In this order: nothing computes, nothing reads, then the blocks are free.
        self.ticket.cancel();
        self.session.abort();
        self.session.quiesced().await;
        let id = self.ticket.id();
        self.worker.driver.with(|core, now| core.scheduler.source_released(id, now));
        if let Some(message) = last {
            let _ = self.answers.send(Ok(wire::PrefillResponse { message: Some(message) })).await;
        }
    }

    async fn until_over(
        &mut self,
        acceptance: Acceptance,
        mut incoming: Streaming<wire::PrefillRequest>,
    ) -> Over {
        use wire::prefill_response::Message;
        self.worker.faults.reach(FaultPoint::SourceAccepted).await;
        if let Err(over) = self.say(Message::Accepted(wire_to::accepted(&acceptance))).await {
            return over;
        }
        loop {
            let step = tokio::select! {
                () = self.worker.driver.fenced(self.parsed.worker) => {
                    Err(Over::failed("this incarnation has been announced gone"))
                }
                event = self.ticket.next() => self.engine_event(event).await,
                message = incoming.message() => match message {
                    Ok(Some(wire::PrefillRequest { message: Some(message) })) => self.message(message).await,
                    Ok(Some(_)) => Err(Over::failed("unknown message")),
                    // The stream's end is an Abort.
                    Ok(None) | Err(_) => Err(Over(None)),
                },
                event = self.session.next() => self.source_event(event).await,
                () = self.answers.closed() => Err(Over(None)),
            };
            if let Err(over) = step {
                return over;
            }
        }
    }

    async fn engine_event(&mut self, event: Option<Event>) -> Result<(), Over> {
        use wire::prefill_response::Message;
        match event {
            None => Err(Over::failed("the engine has ended")),
            Some(Event::Layer(ready)) => self.ready(
                LayerRange::new(ready.layer as u32, ready.layer as u32 + 1),
                ready.tokens,
                &ready.blocks,
            ),
            Some(Event::Effect(Effect::SourceAdmitted { computed_to, blocks, .. })) => {
                self.cached = computed_to;
                self.say(Message::Begin(wire::Begin {})).await?;
                self.worker.faults.reach(FaultPoint::SourceBegun).await;
                let layers = self.worker.identity.spec.kv.layers as u32;
                self.ready(LayerRange::new(0, layers), 0..computed_to, &blocks)
            }
            Some(Event::Effect(Effect::FirstTokens { tokens, .. })) => {
                self.worker.faults.reach(FaultPoint::SourceComputed).await;
                self.session.finish().map_err(Over::failed)?;
                let wants = self.parsed.wants_logprobs;
                let first = tokens.iter().map(|(choice, sampled)| wire::FirstToken {
                    choice: *choice,
                    token: Some(convert::token_info(sampled, wants)),
                });
                let done = wire::PrefillDone {
                    first_tokens: first.collect(),
                    computed_tokens: (self.length - self.cached) as u32,
                };
                self.say(Message::Done(done)).await?;
                self.worker.faults.reach(FaultPoint::SourceDone).await;
                Ok(())
            }
            Some(Event::Effect(Effect::Failed { failure, .. })) => Err(Over::failed(failure)),
            Some(Event::Effect(Effect::ChoiceEnded { finish, .. })) => {
                Err(Over::failed(format!("the prefill ended: {finish:?}")))
            }
            Some(Event::Lost(fault)) => Err(Over::failed(fault)),
            Some(Event::Effect(_) | Event::Admitted) => Ok(()),
        }
    }

    /// Announces computed KV, as far as D lacks it.
    fn ready(&self, layers: LayerRange, tokens: Range<usize>, blocks: &[BlockId]) -> Result<(), Over> {
        let tokens = tokens.start.max(self.from)..tokens.end;
        if tokens.is_empty() {
            return Ok(());
        }
        let block_size = self.worker.identity.block_size();
        let held = &blocks[tokens.start / block_size..=(tokens.end - 1) / block_size];
        self.session.ready(layers, wire_to::token_range(&tokens), held).map_err(Over::failed)
    }

    async fn message(&mut self, message: wire::prefill_request::Message) -> Result<(), Over> {
        use wire::prefill_request::Message;
        match message {
            Message::Start(_) => Err(Over::failed("a transfer starts once")),
            Message::Grant(grant) => {
                let grant = wire_to::granted(self.transfer, &grant).map_err(Over::failed)?;
                self.worker.faults.reach(FaultPoint::SourceGranted).await;
                self.session.granted(grant).map_err(Over::failed)?;
                let id = self.ticket.id();
                self.worker.driver.with(|core, now| core.scheduler.source_granted(id, now));
                Ok(())
            }
            Message::Ack(_) => {
                self.worker.faults.reach(FaultPoint::SourceAcked).await;
                self.session.acknowledge().map_err(Over::failed)?;
                Err(Over(Some(wire::prefill_response::Message::AckConfirmed(wire::AckConfirmed {}))))
            }
            Message::Abort(abort) => {
                tracing::debug!(reason = abort.reason, "transfer aborted by the decode worker");
                Err(Over(None))
            }
        }
    }

    async fn source_event(&mut self, event: Option<SourceEvent>) -> Result<(), Over> {
        match event {
            Some(SourceEvent::Piece(piece)) => {
                self.worker.faults.reach(FaultPoint::SourcePiece).await;
                self.say(wire::prefill_response::Message::PieceReady(wire_to::piece(piece))).await
            }
            // tcp has sent everything; the source stays pinned until the Ack.
            Some(SourceEvent::Moved) => Ok(()),
            Some(SourceEvent::Failed(failure)) => Err(Over::failed(failure)),
            None => Err(Over::failed("the transfer's session ended")),
        }
    }

    async fn say(&self, message: wire::prefill_response::Message) -> Result<(), Over> {
        let answer = wire::PrefillResponse { message: Some(message) };
        self.answers.send(Ok(answer)).await.map_err(|_| Over(None))
    }
}
