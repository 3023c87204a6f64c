//! An accepted request and its choices.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rank::Rank;
use super::transfer::Transfer;
use crate::domain::ids::{ReservationKey, SeqId};
use crate::domain::request::{CacheRoot, FinishReason, RequestKind, StopRule, Usage};
use crate::domain::time::Time;

/// A choice: the sequence that computes it, until it has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChoiceState {
    pub(super) seq: SeqId,
    pub(super) ended: bool,
}

/// A source's part of the bound on pinned blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SourceState {
    /// Blocks that it pins, from its admission on.
    pub(super) pinned: usize,
    /// Whether a decode worker has made room for them.
    pub(super) granted: bool,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) reservation: ReservationKey,
    pub(super) kind: RequestKind,
    pub(super) prompt: Arc<[u32]>,
    pub(super) root: Arc<CacheRoot>,
    pub(super) stop: StopRule,
    pub(super) deadline: Option<Time>,
    pub(super) rank: Rank,
    pub(super) choices: BTreeMap<u32, ChoiceState>,
    /// Choices that have not ended.
    pub(super) open: usize,
    pub(super) usage: Usage,
    /// Whether a sequence of it was admitted before.
    pub(super) was_admitted: bool,
    /// Landing: the transfer, from admission until it is complete or given up.
    pub(super) transfer: Option<Transfer>,
    pub(super) source: SourceState,
    /// Its end has been told; a source may still pin blocks.
    pub(super) ended: bool,
}

impl Request {
    pub(super) fn is_open(&self, choice: u32) -> bool {
        self.choices.get(&choice).is_some_and(|state| !state.ended)
    }

    /// Whether `token`, the last of `generated` generated ones in a sequence of `len` tokens, ends its choice.
    pub(super) fn finish_of(
        &self,
        token: u32,
        generated: usize,
        len: usize,
        context: usize,
    ) -> Option<FinishReason> {
        let stop = &self.stop;
        if generated >= stop.min_tokens as usize && stop.stop_token_ids.contains(&token) {
            return Some(FinishReason::Stop(token));
        }
        (generated >= stop.max_tokens as usize || len >= context).then_some(FinishReason::Length)
    }
}
