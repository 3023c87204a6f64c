//! From a submission to an admitted sequence.

use std::sync::Arc;

use armature_kv_hash::{RootKey, RootParts, SequenceHasher};

use super::rank::{Place, Rank};
use super::request_state::{ChoiceState, Request, SourceState};
use super::sequence::{Phase, Sequence};
use super::transfer::Transfer;
use super::{Effect, Scheduler};
use crate::domain::ids::{RequestId, SeqId};
use crate::domain::report::Settlement;
use crate::domain::request::{FinishReason, Refusal, RequestKind, Submission, Usage};
use crate::domain::time::Time;

impl Scheduler {
    /// Takes a request or refuses it, at once.
    ///
    /// # Errors
    /// [`Refusal`]; nothing of the request is kept but its reservation key.
    pub fn submit(&mut self, submission: Submission, now: Time) -> Result<RequestId, Refusal> {
        self.reservations.forget(now);
        let key = submission.reservation;
        match self.refusal(&submission) {
            Some(Refusal::Duplicate) => Err(Refusal::Duplicate),
            Some(refusal) => {
                self.settle(key, Settlement::Refused, now);
                Err(refusal)
            }
            None => {
                self.settle(key, Settlement::Admitted, now);
                Ok(self.accept(submission, now))
            }
        }
    }

    fn refusal(&self, submission: &Submission) -> Option<Refusal> {
        if self.reservations.knows(submission.reservation) {
            return Some(Refusal::Duplicate);
        }
        if self.draining {
            return Some(Refusal::Draining);
        }
        if let Some(reason) = contradiction(submission) {
            return Some(Refusal::Invalid(reason));
        }
        let generated = submission.choices.iter().map(|choice| choice.generated.len()).max().unwrap_or(0);
        let tokens = submission.prompt.len() + generated;
        if tokens >= self.context {
            return Some(Refusal::ContextExceeded { tokens, limit: self.context });
        }
        let (choices, limit) = (submission.choices.len(), self.config.max_running);
        if choices > limit {
            return Some(Refusal::TooManyChoices { choices, limit });
        }
        let (waiting, limit) = if submission.migrated {
            (self.waiting.range(..Place::NEW).count(), self.config.max_running)
        } else {
            (self.waiting.range(Place::NEW..).count(), self.config.max_waiting)
        };
        if waiting >= limit {
            return Some(Refusal::QueueFull { limit });
        }
        let is_source = matches!(submission.kind, RequestKind::Source { .. });
        if is_source && !self.source_fits(self.kv.blocks_for(tokens)) {
            return Some(Refusal::PrefillBackpressure { pinned: self.ungranted, limit: self.source_limit() });
        }
        None
    }

    fn accept(&mut self, submission: Submission, now: Time) -> RequestId {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let rank =
            Rank::new(now, self.last_request, submission.priority, self.config.ageing, submission.migrated);
        let request = Request {
            reservation: submission.reservation,
            kind: submission.kind,
            usage: Usage { prompt_tokens: submission.prompt.len() as u64, ..Usage::default() },
            prompt: submission.prompt,
            root: submission.root,
            stop: submission.stop,
            deadline: submission.deadline,
            rank,
            open: submission.choices.len(),
            choices: Default::default(),
            was_admitted: false,
            transfer: None,
            source: SourceState::default(),
            ended: false,
        };
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, id));
        }
        self.requests.insert(id, request);
        let choices = submission.choices.into_iter().map(|choice| (choice.index, choice.generated)).collect();
        self.enqueue(id, choices, now);
        id
    }

    /// Puts open choices of a request into the waiting queue, at its rank: those without tokens as one
    /// sequence that computes the prompt once, each other one as its own.
    pub(super) fn enqueue(&mut self, id: RequestId, choices: Vec<(u32, Vec<u32>)>, now: Time) {
        let (fresh, resumed): (Vec<_>, Vec<_>) =
            choices.into_iter().partition(|(_, generated)| generated.is_empty());
        let fresh: Vec<u32> = fresh.into_iter().map(|(choice, _)| choice).collect();
        if !fresh.is_empty() {
            self.enqueue_sequence(id, fresh, Vec::new());
        }
        let mut over = Vec::new();
        for (choice, generated) in resumed {
            if let Some(finish) = self.finish_of_history(id, &generated) {
                over.push((choice, finish));
            }
            self.enqueue_sequence(id, vec![choice], generated);
        }
        for (choice, finish) in over {
            self.end_choice(id, choice, finish, now);
        }
    }

    /// Whether a choice with these tokens is over already.
    fn finish_of_history(&self, id: RequestId, generated: &[u32]) -> Option<FinishReason> {
        let request = self.requests.get(&id)?;
        let len = request.prompt.len() + generated.len();
        request.finish_of(*generated.last()?, generated.len(), len, self.context)
    }

    fn enqueue_sequence(&mut self, id: RequestId, choices: Vec<u32>, generated: Vec<u32>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        self.last_seq += 1;
        let seq = SeqId(self.last_seq);
        for choice in &choices {
            request.choices.insert(*choice, ChoiceState { seq, ended: false });
        }
        let root = RootKey::new(&RootParts {
            model_digest: &request.root.model_digest,
            adapter_digest: &request.root.adapter_digest,
            tenant: &request.root.tenant,
            cache_salt: &request.root.cache_salt,
        });
        let rank = request.rank.of_choice(choices.iter().copied().min().unwrap_or(0));
        let hasher = SequenceHasher::new(root, self.config.block_size);
        let prompt = Arc::clone(&request.prompt);
        let mut sequence = Sequence::new(seq, id, rank, choices, prompt, generated, hasher);
        let most = sequence.reusable_blocks(self.config.block_size);
        let cached = self.kv.longest_prefix(&request.root, sequence.all_tokens(), most);
        sequence.expected_cached = cached.len() * self.config.block_size;
        self.waiting.insert(rank.place(), seq);
        self.seqs.insert(seq, sequence);
    }

    /// Who is admitted next: the first that waits, or the first new one when it is the turn of those.
    pub(super) fn next_waiting(&self) -> Option<SeqId> {
        let first_new = || self.waiting.range(Place::NEW..).next();
        let is_turn_of_new = self.migrated_in_a_row >= self.config.migrated_in_a_row;
        let next = if is_turn_of_new { first_new() } else { None };
        next.or_else(|| self.waiting.first_key_value()).map(|(_, id)| *id)
    }

    /// Admits the next waiting sequence if its whole need can be promised. The order is strict: while
    /// it does not fit, nobody passes it.
    pub(super) fn admit_next(&mut self, now: Time) -> Option<SeqId> {
        let source_limit = self.source_limit();
        let id = self.next_waiting()?;
        let seq = self.seqs.get_mut(&id)?;
        let request = self.requests.get_mut(&seq.request)?;
        if self.seats + seq.choices.len() > self.config.max_running {
            return None;
        }
        let need = self.kv.blocks_for(seq.len());
        let is_source = matches!(request.kind, RequestKind::Source { .. });
        let pinned = if is_source { need } else { 0 };
        if is_source && self.ungranted > 0 && self.ungranted + pinned > source_limit {
            return None;
        }
        let most = seq.reusable_blocks(self.config.block_size);
        let matched = self.kv.longest_prefix(&request.root, seq.all_tokens(), most);
        // Each running sequence may want a block soon: without headroom the one admitted last would be
        // preempted at once.
        let headroom = self.running.len().min(self.config.blocks / 32);
        let fresh = need - matched.len();
        if !self.kv.reserve(&matched, fresh, headroom, !request.was_admitted, now) {
            return None;
        }
        self.waiting.remove(&seq.rank.place());
        // Only while somebody is passed: who arrives later waits for a whole row as well.
        let passes_new = seq.rank.is_migrated() && self.waiting.range(Place::NEW..).next().is_some();
        self.migrated_in_a_row = if passes_new { self.migrated_in_a_row + 1 } else { 0 };
        self.seats += seq.choices.len();
        seq.promised = fresh;
        seq.cached = matched.len();
        seq.computed = matched.len() * self.config.block_size;
        seq.table = matched;
        if !request.was_admitted {
            request.was_admitted = true;
            request.usage.cached = (seq.computed as u64).min(request.usage.prompt_tokens);
        }
        if is_source {
            request.source.pinned = pinned;
            self.ungranted += if request.source.granted { 0 } else { pinned };
            let (request, blocks) = (seq.request, seq.table.clone());
            self.effects.push(Effect::SourceAdmitted { request, computed_to: seq.computed, blocks });
        }
        if request.kind == RequestKind::Landing {
            seq.phase = Phase::Landing;
            seq.cacheable = false;
            request.transfer = Some(Transfer::promised(seq.computed, seq.len()));
            self.effects.push(Effect::LandingAdmitted {
                request: seq.request,
                from_token: seq.computed,
                prompt_len: seq.len(),
            });
        } else {
            seq.phase = Phase::Running;
            self.running.insert(seq.rank, id);
        }
        Some(id)
    }
}

/// Why a submission makes no sense, whatever the state.
fn contradiction(submission: &Submission) -> Option<&'static str> {
    let choices = &submission.choices;
    if submission.prompt.is_empty() {
        return Some("the prompt is empty");
    }
    if choices.is_empty() {
        return Some("no choice is asked for");
    }
    let mut indices: Vec<u32> = choices.iter().map(|choice| choice.index).collect();
    indices.sort_unstable();
    if indices.windows(2).any(|pair| pair[0] == pair[1]) {
        return Some("two choices have one index");
    }
    if submission.stop.max_tokens == 0 {
        return Some("max_tokens is 0");
    }
    let resumes = choices.iter().any(|choice| !choice.generated.is_empty());
    if resumes && choices.len() > 1 && submission.kind != RequestKind::Local {
        return Some("a hand-off of several choices has generated tokens");
    }
    if let RequestKind::Source { from_token } = submission.kind
        && from_token >= submission.prompt.len() + choices[0].generated.len()
    {
        return Some("the missing token range is empty");
    }
    None
}
