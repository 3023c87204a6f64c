//! All the ways in which choices, sequences and requests end.

use std::collections::BTreeSet;

use super::sequence::Phase;
use super::{Effect, Scheduler};
use crate::domain::ids::{RequestId, ReservationKey, SeqId};
use crate::domain::report::Settlement;
use crate::domain::request::{Failure, FinishReason, RequestKind};
use crate::domain::time::Time;

impl Scheduler {
    /// The client does not want the request any more, in whatever state it is. A source stops computing,
    /// and what it has computed stays pinned until [`source_released`](Self::source_released): its peer may
    /// still be reading. Unknown requests are ignored.
    pub fn cancel(&mut self, request: RequestId, now: Time) {
        self.end_request(request, FinishReason::Cancelled, now);
    }

    /// The client does not want this choice any more (a stop string was found).
    pub fn cancel_choice(&mut self, request: RequestId, choice: u32, now: Time) {
        self.end_choice(request, choice, FinishReason::Cancelled, now);
    }

    /// The same for choices of the request of a reservation; unknown ones are ignored.
    pub fn cancel_choices(&mut self, reservation: ReservationKey, choices: &[u32], now: Time) {
        // As many as may run and wait: to look at each is cheaper than to keep another index.
        let found = self.requests.iter().find(|(_, request)| request.reservation == reservation);
        let Some(id) = found.map(|(id, _)| *id) else { return };
        for choice in choices {
            self.cancel_choice(id, *choice, now);
        }
    }

    /// Refuses new requests from now on. What was accepted goes on.
    pub fn drain(&mut self, now: Time) {
        self.draining = true;
        self.reservations.forget(now);
    }

    /// Ends every unfinished choice with [`FinishReason::Migrate`]. Sources that wait end as well;
    /// computed prompts stay pinned until they are released.
    pub fn migrate_all(&mut self, now: Time) {
        let requests: Vec<RequestId> = self.requests.keys().copied().collect();
        for request in requests {
            self.end_request(request, FinishReason::Migrate, now);
        }
    }

    /// Ends requests whose deadline has passed.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some((deadline, request)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_first();
            let starts = |seq: &super::Sequence| seq.request == request && seq.phase != Phase::Waiting;
            let source = self.requests.get(&request).map(|request| request.kind);
            let is_source = matches!(source, Some(RequestKind::Source { .. }));
            if !(is_source && self.seqs.values().any(starts)) {
                self.end_request(request, FinishReason::Deadline, now);
            }
        }
    }

    /// Ends every open choice of a request with `finish`.
    pub(super) fn end_request(&mut self, id: RequestId, finish: FinishReason, now: Time) {
        let Some(request) = self.requests.get(&id) else { return };
        let open: Vec<u32> =
            request.choices.iter().filter(|(_, state)| !state.ended).map(|(choice, _)| *choice).collect();
        for choice in open {
            self.end_choice(id, choice, finish, now);
        }
    }

    /// Ends a choice without a new token.
    pub(super) fn end_choice(&mut self, id: RequestId, choice: u32, finish: FinishReason, now: Time) {
        if self.requests.get(&id).is_some_and(|request| request.is_open(choice)) {
            self.effects.push(Effect::ChoiceEnded { request: id, choice, finish });
            self.close_choice(id, choice, now);
        }
    }

    /// Takes an open choice, whose end has been told, out of its sequence, and ends what is empty then.
    pub(super) fn close_choice(&mut self, id: RequestId, choice: u32, now: Time) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some(state) = request.choices.get_mut(&choice).filter(|state| !state.ended) else { return };
        state.ended = true;
        request.open -= 1;
        let (seq_id, is_over) = (state.seq, request.open == 0);
        if let Some(seq) = self.seqs.get_mut(&seq_id) {
            seq.choices.retain(|other| *other != choice);
            if matches!(seq.phase, Phase::Running | Phase::Landing) {
                self.seats -= 1;
            }
            if seq.choices.is_empty() {
                self.retire(seq_id, now);
            }
        }
        if is_over {
            self.finish(id, now);
        }
    }

    /// A sequence is over: its blocks are given back, after the step that uses them. What a source has
    /// computed stays pinned.
    pub(super) fn retire(&mut self, id: SeqId, now: Time) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let (request, phase) = (seq.request, seq.phase);
        match phase {
            Phase::Waiting => {
                self.waiting.remove(&seq.rank.place());
            }
            Phase::Running => {
                self.running.remove(&seq.rank);
                self.seats -= seq.choices.len();
            }
            Phase::Landing => {
                self.abort_transfer(request, now);
                self.effects.push(Effect::LandingAbort {
                    request,
                    quarantined: self.quarantine.contains_key(&request),
                });
                self.grant_windows(now);
            }
            Phase::Held => {}
            Phase::Ended => return,
        }
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.choices.clear();
        let kind = self.requests.get(&request).map(|request| request.kind);
        if phase == Phase::Running && matches!(kind, Some(RequestKind::Source { .. })) {
            seq.phase = Phase::Held;
            self.kv.unpromise(std::mem::take(&mut seq.promised));
        } else if seq.in_flight {
            seq.phase = Phase::Ended;
        } else {
            self.release_blocks(id, now);
            self.seqs.remove(&id);
        }
    }

    /// Gives back everything a sequence holds: blocks, promise, pending copies.
    pub(super) fn release_blocks(&mut self, id: SeqId, now: Time) {
        self.drop_copies(id, now);
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        // From the end, so that of equally old blocks the deeper is the older.
        for block in std::mem::take(&mut seq.table).into_iter().rev() {
            self.kv.release(block, now);
        }
        self.kv.unpromise(std::mem::take(&mut seq.promised));
        seq.computed = 0;
        seq.cached = 0;
    }

    /// Every choice has ended, and it has been told.
    pub(super) fn finish(&mut self, id: RequestId, now: Time) {
        let Some(request) = self.requests.get(&id).filter(|request| !request.ended) else { return };
        self.effects.push(Effect::Finished { request: id, usage: request.usage });
        self.end(id, now);
    }

    /// The request fails as a whole.
    pub(super) fn fail_request(&mut self, id: RequestId, failure: Failure, now: Time) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| !request.ended) else { return };
        let seqs: BTreeSet<SeqId> =
            request.choices.values().filter(|state| !state.ended).map(|state| state.seq).collect();
        request.open = 0;
        request.choices.values_mut().for_each(|state| state.ended = true);
        for seq in seqs {
            self.retire(seq, now);
        }
        if let Some(usage) = self.requests.get(&id).map(|request| request.usage) {
            self.effects.push(Effect::Failed { request: id, failure, usage });
        }
        self.end(id, now);
    }

    /// Settles an ended request and forgets it, unless it still pins blocks as a source.
    fn end(&mut self, id: RequestId, now: Time) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.ended = true;
        let (key, deadline) = (request.reservation, request.deadline);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.settle(key, Settlement::Finished, now);
        self.forget_unpinned(id);
    }

    /// Forgets an ended request without a pinned sequence.
    pub(super) fn forget_unpinned(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id).filter(|request| request.ended) else { return };
        let is_held = |seq: &SeqId| self.seqs.get(seq).is_some_and(|seq| seq.phase == Phase::Held);
        if !request.choices.values().any(|state| is_held(&state.seq)) {
            self.requests.remove(&id);
        }
    }

    pub(super) fn settle(&mut self, key: ReservationKey, settlement: Settlement, now: Time) {
        self.reservations.settle(key, settlement, now);
        self.effects.push(Effect::Settled { key, settlement });
    }
}
