//! Choosing the next step: decode rows first, then prefill chunks within the time budget, then
//! admissions as long as budget is left.

use std::collections::BTreeSet;

use super::sequence::Phase;
use super::{InFlight, PlannedChunk, Scheduler, StepPlan};
use crate::domain::ids::{BlockId, SeqId, StepId};
use crate::domain::request::RequestKind;
use crate::domain::step_model::StepWork;
use crate::domain::time::Time;

/// A plan in the making.
#[derive(Debug, Default)]
struct Draft {
    chunks: Vec<PlannedChunk>,
    work: StepWork,
    tokens: usize,
    /// Whether a prefill chunk is planned: the first one has a floor, so that prefill always gets on.
    prefills: bool,
}

impl Scheduler {
    /// Plans the next step. Passed deadlines end their requests first. An empty plan means that nothing
    /// can be computed until another input; any other plan must be answered by one commit or failure.
    pub fn plan(&mut self, now: Time) -> StepPlan {
        debug_assert!(self.in_flight.is_none(), "one step at a time");
        let mut draft = Draft::default();
        if self.in_flight.is_none() {
            self.expire(now);
            self.plan_decodes(&mut draft, now);
            self.plan_prefills(&mut draft, now);
            self.plan_admissions(&mut draft, now);
        }
        self.launch(draft)
    }

    fn launch(&mut self, draft: Draft) -> StepPlan {
        let id = StepId(self.last_step + 1);
        let copies = if self.in_flight.is_none() { std::mem::take(&mut self.copies) } else { Vec::new() };
        let plan = StepPlan {
            id,
            copies: copies.iter().map(|pending| pending.copy).collect(),
            chunks: draft.chunks,
            work: draft.work,
        };
        if plan.is_empty() {
            return plan;
        }
        self.last_step = id.0;
        let mut seqs: BTreeSet<SeqId> = plan.chunks.iter().map(|chunk| chunk.seq).collect();
        seqs.extend(copies.iter().map(|pending| pending.seq));
        for seq in &seqs {
            if let Some(seq) = self.seqs.get_mut(seq) {
                seq.in_flight = true;
            }
        }
        self.in_flight = Some(InFlight { id, seqs, copies });
        plan
    }

    fn running_in_order(&self) -> Vec<SeqId> {
        self.running.values().copied().collect()
    }

    /// One row for each sequence that has its prompt, in rank order. A new block may cost the sequence
    /// with the largest rank its place; that one is never planned yet.
    fn plan_decodes(&mut self, draft: &mut Draft, now: Time) {
        for id in self.running_in_order() {
            let Some(seq) = self.seqs.get(&id) else { continue };
            if seq.phase != Phase::Running || !seq.decodes() {
                continue;
            }
            // A recomputed sequence may find all but its last token cached, and have a promise left.
            if self.kv.blocks_for(seq.len()) > seq.table.len() + seq.promised {
                let Some(block) = self.take_or_preempt(id, now) else { continue };
                if let Some(seq) = self.seqs.get_mut(&id) {
                    seq.table.push(block);
                }
            }
            if let Some(seq) = self.seqs.get(&id) {
                draft.work.add_decode(seq.computed);
            }
            self.push_chunk(draft, id, 1, now);
        }
    }

    /// A block that is promised to nobody, or `None` when `id` itself was the one to give way.
    fn take_or_preempt(&mut self, id: SeqId, now: Time) -> Option<BlockId> {
        loop {
            if let Some(block) = self.kv.take(now) {
                return Some(block);
            }
            let victim = self.running.values().rev().copied().find(|seq| self.is_preemptible(*seq))?;
            self.preempt(victim, now);
            if victim == id {
                return None;
            }
        }
    }

    fn is_preemptible(&self, id: SeqId) -> bool {
        let request = self.seqs.get(&id).and_then(|seq| self.requests.get(&seq.request));
        request.is_some_and(|request| !matches!(request.kind, RequestKind::Source { .. }))
    }

    /// Back to the waiting queue, at its old rank. Its tokens stay; their KV is computed again.
    pub(super) fn preempt(&mut self, id: SeqId, now: Time) {
        let block_size = self.config.block_size;
        let cached = self.seqs.get(&id).map_or(0, |seq| seq.cached);
        self.release_blocks(id, now);
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        self.running.remove(&seq.rank);
        self.seats -= seq.choices.len();
        seq.phase = Phase::Waiting;
        seq.cacheable = true;
        seq.expected_cached = cached * block_size;
        self.waiting.insert(seq.rank.place(), id);
    }

    fn plan_prefills(&mut self, draft: &mut Draft, now: Time) {
        for id in self.running_in_order() {
            let prefills = self.seqs.get(&id).is_some_and(|seq| !seq.decodes() && seq.uncomputed() > 0);
            if prefills && !self.plan_prefill(draft, id, now) {
                return;
            }
        }
    }

    /// Admits while there is budget for another chunk. Late admission finds what earlier requests of
    /// the same prefix have computed meanwhile. A landing request needs no budget.
    fn plan_admissions(&mut self, draft: &mut Draft, now: Time) {
        loop {
            let Some(head) = self.next_waiting().and_then(|id| self.seqs.get(&id)) else { return };
            if !self.lands(head) && self.prefill_budget(draft, head.expected_cached) == 0 {
                return;
            }
            let Some(id) = self.admit_next(now) else { return };
            let runs = self.seqs.get(&id).is_some_and(|seq| seq.phase == Phase::Running);
            if runs && !self.plan_prefill(draft, id, now) {
                return;
            }
        }
    }

    /// Tokens that a chunk from position `start` may have beside the draft.
    fn prefill_budget(&self, draft: &Draft, start: usize) -> usize {
        let most = self.config.max_batched_tokens - draft.tokens;
        let fits = self.model.chunk_budget(draft.work, start, most);
        if draft.prefills { fits } else { fits.max(self.config.block_size).min(most) }
    }

    /// Plans the next chunk of a prompt. False when the step is full.
    fn plan_prefill(&mut self, draft: &mut Draft, id: SeqId, now: Time) -> bool {
        let Some(seq) = self.seqs.get(&id) else { return true };
        let (start, rest) = (seq.computed, seq.uncomputed());
        let budget = self.prefill_budget(draft, start);
        let tokens = if rest <= budget {
            rest
        } else {
            // Whole blocks, where the budget has one.
            let aligned = (start + budget) / self.config.block_size * self.config.block_size;
            if aligned > start { aligned - start } else { budget }
        };
        if tokens == 0 {
            return false;
        }
        draft.work.add_prefill(start, tokens);
        draft.prefills = true;
        self.push_chunk(draft, id, tokens, now);
        tokens == rest
    }

    /// Plans the next `tokens` tokens of a sequence; blocks that the table lacks are promised.
    fn push_chunk(&mut self, draft: &mut Draft, id: SeqId, tokens: usize, now: Time) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let (start, end) = (seq.computed, seq.computed + tokens);
        let blocks = self.kv.blocks_for(end);
        while seq.table.len() < blocks {
            seq.table.push(self.kv.take_promised(now));
            seq.promised -= 1;
        }
        let sample_choices = if end == seq.len() { seq.choices.clone() } else { Vec::new() };
        draft.tokens += tokens;
        draft.chunks.push(PlannedChunk {
            seq: id,
            request: seq.request,
            start,
            tokens: seq.tokens(start..end),
            blocks: seq.table[..blocks].to_vec(),
            sample_choices,
        });
    }
}
