//! Taking in how a step went.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::sequence::Phase;
use super::{Effect, InFlight, PlannedChunk, Scheduler, StepPlan, StepResult};
use crate::domain::ids::{RequestId, SeqId};
use crate::domain::prefix_cache::Inserted;
use crate::domain::request::{Failure, FinishReason, RequestKind};
use crate::domain::sampled::Sampled;
use crate::domain::time::Time;

impl Scheduler {
    /// The step is done: its KV counts, its samples are told, its blocks may be given back.
    pub fn commit(&mut self, plan: StepPlan, result: StepResult, now: Time) {
        let Some(in_flight) = self.land_step(&plan, now) else { return };
        if result.dropped.is_empty() {
            self.model.observe(plan.work, result.elapsed);
        }
        let dropped: BTreeSet<SeqId> = result.dropped.into_iter().collect();
        let mut samples: HashMap<(SeqId, u32), Sampled> =
            result.samples.into_iter().map(|(seq, choice, sampled)| ((seq, choice), sampled)).collect();
        for chunk in &plan.chunks {
            let runs = self.seqs.get(&chunk.seq).is_some_and(|seq| seq.phase == Phase::Running);
            if runs && !dropped.contains(&chunk.seq) {
                self.commit_chunk(chunk, &mut samples, now);
            }
        }
        self.bury(in_flight, now);
    }

    /// The engine failed: every request of the step fails, nothing else does. Nothing of the step counts.
    pub fn fail_step(&mut self, plan: StepPlan, message: &str, now: Time) {
        let Some(in_flight) = self.land_step(&plan, now) else { return };
        let failed: BTreeSet<RequestId> =
            in_flight.seqs.iter().filter_map(|seq| self.seqs.get(seq)).map(|seq| seq.request).collect();
        for request in failed {
            self.fail_request(request, Failure::Engine(message.to_owned()), now);
        }
        self.bury(in_flight, now);
    }

    /// Ends the flight of the plan's step; `None` when it is not the one in flight.
    fn land_step(&mut self, plan: &StepPlan, now: Time) -> Option<InFlight> {
        debug_assert_eq!(self.in_flight.as_ref().map(|step| step.id), Some(plan.id), "the step in flight");
        let mut step = self.in_flight.take_if(|step| step.id == plan.id)?;
        for pending in step.copies.drain(..) {
            self.kv.release(pending.copy.from, now);
        }
        for seq in &step.seqs {
            if let Some(seq) = self.seqs.get_mut(seq) {
                seq.in_flight = false;
            }
        }
        Some(step)
    }

    /// Frees what ended while the step was using it.
    fn bury(&mut self, step: InFlight, now: Time) {
        for id in step.seqs {
            if self.seqs.get(&id).is_some_and(|seq| seq.phase == Phase::Ended) {
                self.release_blocks(id, now);
                self.seqs.remove(&id);
            }
        }
    }

    fn commit_chunk(
        &mut self,
        chunk: &PlannedChunk,
        samples: &mut HashMap<(SeqId, u32), Sampled>,
        now: Time,
    ) {
        let Some(seq) = self.seqs.get_mut(&chunk.seq) else { return };
        let Some(request) = self.requests.get_mut(&chunk.request) else { return };
        if !seq.decodes() {
            request.usage.computed += chunk.tokens.len() as u64;
        }
        seq.computed = chunk.start + chunk.tokens.len();
        let complete = seq.uncomputed() == 0;
        let choices = seq.choices.clone();
        let is_source = matches!(request.kind, RequestKind::Source { .. });
        self.cache_computed(chunk.seq, !is_source, now);
        if is_source {
            self.source_progress(chunk.seq);
        }
        if !complete {
            return;
        }
        let sampled = choices.iter().map(|choice| (*choice, samples.remove(&(chunk.seq, *choice)))).collect();
        if is_source {
            self.hold_source(chunk.seq, sampled);
        } else {
            self.append(chunk.seq, sampled, now);
        }
    }

    /// Makes complete blocks of a sequence entries of the prefix cache. Where the cache has a block of
    /// the same content already, the sequence goes on with that one (`merge`), or keeps its own and
    /// caches nothing further: blocks that a peer has been told of must not change.
    ///
    /// A block that waits for its copy is not complete, whatever the sequence counts: its turn comes with a later step.
    pub(super) fn cache_computed(&mut self, id: SeqId, merge: bool, now: Time) {
        let in_flight = self.in_flight.iter().flat_map(|step| &step.copies);
        if self.copies.iter().chain(in_flight).any(|pending| pending.seq == id) {
            return;
        }
        let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.cacheable) else { return };
        let Some(request) = self.requests.get(&seq.request) else { return };
        let block_size = self.config.block_size;
        while seq.cached < seq.computed / block_size {
            let index = seq.cached;
            let tokens: Arc<[u32]> = seq.tokens(index * block_size..(index + 1) * block_size).into();
            let hash = seq.hash(index, block_size);
            let parent = index.checked_sub(1).map(|above| seq.table[above]);
            let own = seq.table[index];
            match self.kv.cache_block(&request.root, parent, tokens, own, hash, now) {
                Inserted::New => {}
                Inserted::Exists(cached) if cached == own => {}
                Inserted::Exists(cached) if merge && !seq.in_flight => {
                    self.kv.merge(own, cached, now);
                    seq.table[index] = cached;
                }
                Inserted::Exists(_) => return,
            }
            seq.cached += 1;
        }
    }

    /// Appends a sampled token to each choice of a sequence; `None` is a token that could not be
    /// sampled. Choices that go on and share the sequence part here.
    pub(super) fn append(&mut self, id: SeqId, sampled: Vec<(u32, Option<Sampled>)>, now: Time) {
        let Some(request) = self.seqs.get(&id).map(|seq| seq.request) else { return };
        let mut going_on = Vec::new();
        for (choice, sampled) in sampled {
            let Some(sampled) = sampled else {
                self.end_choice(request, choice, FinishReason::Error, now);
                continue;
            };
            let token = sampled.token;
            if self.emit(request, id, choice, sampled, now) {
                going_on.push((choice, token));
            }
        }
        if let Some(((choice, token), others)) = going_on.split_first() {
            for (other, token) in others {
                self.fork(id, *other, *token, now);
            }
            if let Some(seq) = self.seqs.get_mut(&id) {
                seq.choices = vec![*choice];
                seq.generated.push(*token);
            }
        }
    }

    /// Tells a new token of a choice and applies the stop rule. Whether the choice goes on.
    pub(super) fn emit(
        &mut self,
        id: RequestId,
        seq: SeqId,
        choice: u32,
        sampled: Sampled,
        now: Time,
    ) -> bool {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.is_open(choice)) else {
            return false;
        };
        let Some(seq) = self.seqs.get(&seq) else { return false };
        let position = seq.generated.len();
        let finish = request.finish_of(sampled.token, position + 1, seq.len() + 1, self.context);
        request.usage.generated += 1;
        self.effects.push(Effect::Token { request: id, choice, position: position as u32, sampled, finish });
        if finish.is_some() {
            self.close_choice(id, choice, now);
        }
        finish.is_none()
    }
}
