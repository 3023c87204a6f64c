//! The prefill side of a hand-off: compute, sample the first tokens, hold.

use super::sequence::Phase;
use super::{Effect, Scheduler};
use crate::domain::ids::{RequestId, SeqId};
use crate::domain::request::{FinishReason, RequestKind};
use crate::domain::sampled::Sampled;
use crate::domain::time::Time;

impl Scheduler {
    /// Blocks that sources without a grant may pin.
    pub(super) fn source_limit(&self) -> usize {
        (self.config.blocks as f64 * self.config.source_fraction) as usize
    }

    /// Whether a source that pins `blocks` more may be taken. One alone always may.
    pub(super) fn source_fits(&self, blocks: usize) -> bool {
        self.ungranted == 0 || self.ungranted + blocks <= self.source_limit()
    }

    /// The decode worker has made room for the KV: it does not count against the bound any more.
    pub fn source_granted(&mut self, request: RequestId, now: Time) {
        if let Some(request) = self.requests.get_mut(&request)
            && !request.source.granted
        {
            request.source.granted = true;
            self.ungranted -= request.source.pinned;
        }
        self.reservations.forget(now);
    }

    /// The KV is not needed any more (Ack, Abort or the transfer's deadline): its blocks are unpinned,
    /// and the request ends. Choices without a first token end as cancelled.
    pub fn source_released(&mut self, id: RequestId, now: Time) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if !matches!(request.kind, RequestKind::Source { .. }) {
            return;
        }
        if !request.source.granted {
            self.ungranted -= request.source.pinned;
            request.source.granted = true;
        }
        let Some(seq) = request.choices.values().next().map(|state| state.seq) else { return };
        self.end_request(id, FinishReason::Cancelled, now);
        self.finish(id, now);
        self.cache_computed(seq, true, now);
        self.retire(seq, now);
        self.forget_unpinned(id);
    }

    /// Tells how far a source is.
    pub(super) fn source_progress(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get(&id) else { return };
        let blocks = seq.table[..self.kv.blocks_for(seq.computed)].to_vec();
        self.effects.push(Effect::SourceProgress { request: seq.request, computed_to: seq.computed, blocks });
    }

    /// The prompt is computed and sampled: the sequence leaves the steps and stays pinned.
    pub(super) fn hold_source(&mut self, id: SeqId, sampled: Vec<(u32, Option<Sampled>)>) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let Some(request) = self.requests.get_mut(&seq.request) else { return };
        self.running.remove(&seq.rank);
        self.seats -= seq.choices.len();
        seq.phase = Phase::Held;
        seq.choices.clear();
        request.open = 0;
        request.choices.values_mut().for_each(|state| state.ended = true);
        let tokens: Vec<(u32, Sampled)> =
            sampled.into_iter().filter_map(|(choice, sampled)| Some((choice, sampled?))).collect();
        request.usage.generated += tokens.len() as u64;
        self.effects.push(Effect::FirstTokens { request: seq.request, tokens });
    }
}
