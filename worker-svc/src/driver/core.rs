//! What the driver's lock guards: the scheduler, and whom its effects concern.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use armature_contracts::ids::WorkerRank;
use tokio::sync::mpsc;

use super::Event;
use crate::domain::ids::RequestId;
use crate::domain::request::{Refusal, RequestKind, Submission};
use crate::domain::sampling::SamplingParams;
use crate::domain::scheduler::{Effect, Scheduler};
use crate::domain::time::Time;
use crate::kv_memory::KvMemory;

/// A request for the engine.
#[derive(Debug, Clone)]
pub struct Job {
    /// The incarnation that it is for.
    pub worker: WorkerRank,
    /// What the scheduler needs to know.
    pub submission: Submission,
    /// How its tokens are chosen.
    pub params: SamplingParams,
    /// Seed of its draws.
    pub seed: u64,
    /// The model's own end tokens do not end it.
    pub ignore_eos: bool,
}

/// Sums since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens whose KV the engine computed, by its own count: prefill and decode.
    pub engine_tokens: u64,
    /// Prompt tokens computed, by the usage of ended requests.
    pub prompt_tokens_computed: u64,
    /// Tokens generated.
    pub tokens_generated: u64,
    /// Forward passes.
    pub steps: u64,
}

/// A request between submission and its end.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Unbounded, but holds no more than the request's tokens and layers of its chunks: the context length
    /// bounds it for each choice.
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) live: Arc<AtomicBool>,
    pub(super) params: Arc<SamplingParams>,
    pub(super) seed: u64,
    pub(super) is_source: bool,
}

/// The state behind the lock.
#[derive(Debug)]
pub struct Core {
    /// The scheduler.
    pub scheduler: Scheduler,
    pub(super) requests: HashMap<RequestId, InFlight>,
    pub(super) counters: Counters,
    pub(super) stopping: bool,
}

impl Core {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, requests: HashMap::new(), counters: Counters::default(), stopping: false }
    }

    pub(super) fn submit(
        &mut self,
        job: Job,
        now: Time,
    ) -> Result<(RequestId, mpsc::UnboundedReceiver<Event>, Arc<AtomicBool>), Refusal> {
        let is_source = matches!(job.submission.kind, RequestKind::Source { .. });
        let is_local = job.submission.kind == RequestKind::Local;
        let id = self.scheduler.submit(job.submission, now)?;
        let (sender, events) = mpsc::unbounded_channel();
        if is_local {
            // Nothing but the first token would tell that the engine has taken it.
            let _ = sender.send(Event::Admitted);
        }
        let live = Arc::new(AtomicBool::new(true));
        let request = InFlight {
            events: sender,
            live: Arc::clone(&live),
            params: Arc::new(job.params),
            seed: job.seed,
            is_source,
        };
        self.requests.insert(id, request);
        Ok((id, events, live))
    }

    /// Hands out effects; true when the load may have changed.
    pub(super) fn dispatch(&mut self, poison: Option<&KvMemory>) -> bool {
        let mut changed = false;
        for effect in self.scheduler.take_effects() {
            changed = true;
            let Some((id, ends)) = concerns(&effect) else { continue };
            match &effect {
                Effect::Granted { blocks, .. } => {
                    if let Some(kv) = poison {
                        blocks.iter().for_each(|block| kv.poison(*block));
                    }
                }
                Effect::Token { .. } => self.counters.tokens_generated += 1,
                Effect::Finished { usage, .. } | Effect::Failed { usage, .. } => {
                    self.counters.prompt_tokens_computed += usage.computed;
                }
                _ => {}
            }
            if let Some(request) = self.requests.get(&id) {
                // A handler that is gone has cancelled: there is nobody to tell.
                let _ = request.events.send(Event::Effect(effect));
            }
            if ends {
                self.requests.remove(&id);
            }
        }
        changed
    }
}

/// The request an effect concerns, and whether it is the request's last.
fn concerns(effect: &Effect) -> Option<(RequestId, bool)> {
    match effect {
        Effect::Settled { .. } => None,
        Effect::Finished { request, .. } | Effect::Failed { request, .. } => Some((*request, true)),
        Effect::Token { request, .. }
        | Effect::ChoiceEnded { request, .. }
        | Effect::LandingAdmitted { request, .. }
        | Effect::Granted { request, .. }
        | Effect::LandingAbort { request, .. }
        | Effect::SourceAdmitted { request, .. }
        | Effect::SourceProgress { request, .. }
        | Effect::FirstTokens { request, .. } => Some((*request, false)),
    }
}
