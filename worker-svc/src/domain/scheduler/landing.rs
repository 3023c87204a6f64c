//! The decode side of a hand-off: what the transfer's messages do to the sequence.

use super::sequence::Phase;
use super::transfer::{LandingError, Transfer, TransferPhase};
use super::{Effect, Scheduler};
use crate::domain::ids::{RequestId, SeqId, WindowIndex};
use crate::domain::request::{Failure, RequestKind};
use crate::domain::sampled::Sampled;
use crate::domain::time::Time;

/// What becomes of a request whose transfer failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fallback {
    /// It is prefilled here, from its old place in the queue.
    Local,
    /// It waits for its admission again, from its old place in the queue, to be handed off by another prefill worker. One whose
    /// first tokens have been told is prefilled here instead.
    Again,
    /// It fails, for this reason.
    Fail(String),
}

impl Scheduler {
    fn transfer(&mut self, id: RequestId) -> Result<&mut Transfer, LandingError> {
        self.requests.get_mut(&id).and_then(|request| request.transfer.as_mut()).ok_or(LandingError::Unknown)
    }

    /// The one sequence of a request whose transfer is under way.
    fn landing_sequence(&self, id: RequestId) -> Option<SeqId> {
        let request = self.requests.get(&id)?;
        request.choices.values().find(|state| !state.ended).map(|state| state.seq)
    }

    /// The prefill worker has begun: windows are granted as the budget allows.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed.
    pub fn landing_begin(&mut self, id: RequestId, now: Time) -> Result<(), LandingError> {
        self.transfer(id)?.begin()?;
        self.grant_queue.push_back(id);
        self.grant_windows(now);
        Ok(())
    }

    /// The first piece of a window arrives.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed.
    pub fn landing_started(
        &mut self,
        id: RequestId,
        window: WindowIndex,
        _now: Time,
    ) -> Result<(), LandingError> {
        self.transfer(id)?.started(window)
    }

    /// Every piece of a window has arrived; nothing will write its blocks again.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed.
    pub fn landing_landed(
        &mut self,
        id: RequestId,
        window: WindowIndex,
        now: Time,
    ) -> Result<(), LandingError> {
        let blocks = self.transfer(id)?.landed(window)?.to_vec();
        for block in blocks {
            self.kv.land(block);
        }
        self.grant_windows(now);
        Ok(())
    }

    /// Grants windows, first in first out over all transfers, while the blocks granted and not landed
    /// stay within their part of the pool. A transfer that cannot have a window of the least size waits,
    /// and those behind it with it.
    pub(super) fn grant_windows(&mut self, now: Time) {
        let budget = ((self.config.blocks as f64 * self.config.grant_fraction) as usize).max(1);
        let least = self.kv.blocks_for(self.config.min_window_tokens).clamp(1, budget);
        while let Some(id) = self.grant_queue.front().copied() {
            let ungranted = self.transfer(id).map(|transfer| transfer.ungranted()).unwrap_or(0..0);
            let rest = self.kv.blocks_for(ungranted.end) - ungranted.start / self.config.block_size;
            if ungranted.is_empty() {
                self.grant_queue.pop_front();
                continue;
            }
            let left = budget.saturating_sub(self.kv.pool().granted());
            if left < rest.min(least) {
                return;
            }
            // At most half the budget in one window, so that the next is granted while this one lands.
            self.grant_window(id, rest.min(left).min(least.max(budget / 2)), now);
        }
    }

    fn grant_window(&mut self, id: RequestId, blocks: usize, now: Time) {
        let Some(seq_id) = self.landing_sequence(id) else { return };
        let Some(seq) = self.seqs.get_mut(&seq_id) else { return };
        let granted: Vec<_> = (0..blocks).map(|_| self.kv.take_promised(now)).collect();
        for block in &granted {
            self.kv.grant(*block);
        }
        seq.promised -= blocks;
        seq.table.extend_from_slice(&granted);
        let end = seq.table.len() * self.config.block_size;
        if let Ok(transfer) = self.transfer(id) {
            let (window, tokens) = transfer.grant(end, granted.clone());
            self.effects.push(Effect::Granted { request: id, window, tokens, blocks: granted });
        }
    }

    /// The first tokens that the prefill worker has sampled, per choice: told at once. When they end every
    /// choice the transfer is aborted. Tokens for choices that ended meanwhile are ignored.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed. After `landing_complete` it is too late: this worker samples
    /// what is missing itself.
    pub fn landing_first_tokens(
        &mut self,
        id: RequestId,
        tokens: Vec<(u32, Sampled)>,
        now: Time,
    ) -> Result<(), LandingError> {
        let transfer = self.transfer(id)?;
        if transfer.phase() == TransferPhase::Complete {
            return Err(LandingError::WrongPhase(TransferPhase::Complete));
        }
        let seq = self.landing_sequence(id).ok_or(LandingError::Unknown)?;
        for (choice, sampled) in tokens {
            let is_known = |transfer: &mut Transfer| transfer.first_tokens.contains_key(&choice);
            if self.transfer(id).is_ok_and(is_known) {
                continue;
            }
            let token = sampled.token;
            if self.emit(id, seq, choice, sampled, now)
                && let Ok(transfer) = self.transfer(id)
            {
                transfer.first_tokens.insert(choice, token);
            }
        }
        Ok(())
    }

    /// All KV of the prompt is here: the request decodes. Choices without a first token have the last
    /// prompt token computed here, and are sampled.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed.
    pub fn landing_complete(&mut self, id: RequestId, now: Time) -> Result<(), LandingError> {
        let transfer = self.transfer(id)?;
        transfer.complete()?;
        let (tokens, end) = (transfer.to - transfer.from, transfer.to);
        let first_tokens = std::mem::take(&mut transfer.first_tokens);
        let seq_id = self.landing_sequence(id).ok_or(LandingError::Unknown)?;
        if let Some(request) = self.requests.get_mut(&id) {
            request.kind = RequestKind::Local;
            request.usage.transferred = tokens as u64;
        }
        let Some(seq) = self.seqs.get_mut(&seq_id) else { return Err(LandingError::Unknown) };
        let (known, unknown): (Vec<u32>, Vec<u32>) =
            seq.choices.iter().partition(|choice| first_tokens.contains_key(choice));
        seq.phase = Phase::Running;
        // The sequence goes on as the choices that lack a token, or as the first one if none does.
        let (stays, leave) = match (unknown.is_empty(), known.split_first()) {
            (true, Some((first, others))) => (vec![*first], others),
            _ => (unknown, known.as_slice()),
        };
        seq.computed = if first_tokens.contains_key(&stays[0]) { end } else { end - 1 };
        seq.rank = seq.rank.of_choice(stays[0]);
        self.running.insert(seq.rank, seq_id);
        for choice in leave {
            self.fork(seq_id, *choice, first_tokens[choice], now);
        }
        if let Some(seq) = self.seqs.get_mut(&seq_id) {
            seq.generated.extend(first_tokens.get(&stays[0]));
            seq.choices = stays;
        }
        Ok(())
    }

    /// The prefill worker has confirmed that its KV was pinned throughout: the landed blocks may be
    /// cached and told.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed.
    pub fn landing_committed(&mut self, id: RequestId, now: Time) -> Result<(), LandingError> {
        self.transfer(id)?.expect(TransferPhase::Complete)?;
        let Some(request) = self.requests.get_mut(&id) else { return Err(LandingError::Unknown) };
        request.transfer = None;
        let seqs: Vec<SeqId> =
            request.choices.values().filter(|state| !state.ended).map(|state| state.seq).collect();
        for seq in seqs {
            if let Some(seq) = self.seqs.get_mut(&seq) {
                seq.cacheable = true;
            }
            self.cache_computed(seq, true, now);
        }
        Ok(())
    }

    /// The hand-off failed, at any time before `landing_complete`; a request that still waits for its
    /// admission as well. Granted blocks that may still be written go to quarantine.
    ///
    /// # Errors
    /// [`LandingError`]; nothing changed.
    pub fn landing_failed(
        &mut self,
        id: RequestId,
        fallback: Fallback,
        now: Time,
    ) -> Result<(), LandingError> {
        let request = self.requests.get(&id).ok_or(LandingError::Unknown)?;
        if let Some(transfer) = &request.transfer
            && transfer.phase() == TransferPhase::Complete
        {
            return Err(LandingError::WrongPhase(TransferPhase::Complete));
        }
        if request.kind != RequestKind::Landing {
            return Err(LandingError::Unknown);
        }
        let first_tokens = self.abort_transfer(id, now);
        self.grant_windows(now);
        match fallback {
            Fallback::Fail(reason) => self.fail_request(id, Failure::PrefillLost(reason), now),
            Fallback::Again if first_tokens.is_empty() => {
                self.requeue(id, RequestKind::Landing, &first_tokens, now);
            }
            Fallback::Again | Fallback::Local => self.requeue(id, RequestKind::Local, &first_tokens, now),
        }
        Ok(())
    }

    /// Puts a request whose transfer is gone back into the queue, as if it had been of `kind` from the start.
    fn requeue(
        &mut self,
        id: RequestId,
        kind: RequestKind,
        first_tokens: &std::collections::BTreeMap<u32, u32>,
        now: Time,
    ) {
        let Some(seq_id) = self.landing_sequence(id) else { return };
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.kind = kind;
        let Some(seq) = self.seqs.remove(&seq_id) else { return };
        self.waiting.remove(&seq.rank.place());
        let choices = seq.choices.iter().map(|choice| {
            let mut generated = seq.generated.clone();
            generated.extend(first_tokens.get(choice));
            (*choice, generated)
        });
        let choices = choices.collect();
        self.enqueue(id, choices, now);
    }

    /// Gives up a transfer that is not complete: blocks that may still be written go to quarantine, the
    /// rest and the promise are given back, and the sequence waits without blocks; the caller lets other
    /// transfers have the grant budget. The first tokens that were told come back.
    pub(super) fn abort_transfer(
        &mut self,
        id: RequestId,
        now: Time,
    ) -> std::collections::BTreeMap<u32, u32> {
        let Some(transfer) = self.requests.get_mut(&id).and_then(|request| request.transfer.take()) else {
            return Default::default();
        };
        let Some(request) = self.requests.get(&id) else { return Default::default() };
        let writable: Vec<_> = transfer.writable().collect();
        for block in &writable {
            self.kv.quarantine(*block);
        }
        let landing = request
            .choices
            .values()
            .map(|state| state.seq)
            .find(|seq| self.seqs.get(seq).is_some_and(|seq| seq.phase == Phase::Landing));
        if let Some(seq_id) = landing
            && let Some(seq) = self.seqs.get_mut(&seq_id)
        {
            seq.table.retain(|block| !writable.contains(block));
            seq.phase = Phase::Waiting;
            self.seats -= seq.choices.len();
            self.release_blocks(seq_id, now);
        }
        if !writable.is_empty() {
            self.quarantine.insert(id, writable);
        }
        self.grant_queue.retain(|other| *other != id);
        transfer.first_tokens
    }

    /// No write of the broken transfer can arrive any more: its blocks are free.
    pub fn quarantine_released(&mut self, id: RequestId, _now: Time) {
        for block in self.quarantine.remove(&id).unwrap_or_default() {
            self.kv.release_quarantined(block);
        }
    }
}
