//! Hand-offs: the real schedulers on both sides, and between them a line that moves what has been computed.
//!
//! A window is sent when all its tokens are computed, one after the other, at a time per token; nothing is sent before the pass that
//! computes it has ended (real workers send layer by layer, so this is the longest that a transfer can take). Messages take no time.

use std::ops::Range;

use armature_worker::domain::ids::{RequestId, WindowIndex};
use armature_worker::domain::request::RequestKind;
use armature_worker::domain::sampled::Sampled;
use armature_worker::domain::scheduler::Fallback;
use armature_worker::domain::time::Time;

use super::Simulation;
use crate::events::Event;
use crate::flight::Handoff;

impl Simulation {
    /// The leader has promised room: the first prefill worker that takes the work does it.
    pub(super) fn landing_admitted(&mut self, worker: usize, request: RequestId, tokens: Range<usize>) {
        let Some(number) = self.leads(worker, request) else { return };
        self.transfers += 1;
        let transfer = self.transfers;
        let Some(handoff) = self.handoff(number) else { return };
        handoff.admitted(tokens, transfer);
        self.find_source(number);
    }

    fn find_source(&mut self, number: u64) {
        while let Some(flight) = self.flights.get_mut(&number)
            && let Some(handoff) = &mut flight.handoff
            && let Some(target) = handoff.targets.pop_front()
        {
            let side = &mut self.workers[target];
            if !side.alive {
                continue;
            }
            let kind = RequestKind::Source { from_token: handoff.from };
            let submission = flight.submission(number, kind, &self.root);
            self.touched.insert(target);
            if let Ok(id) = side.scheduler.submit(submission, Time(self.now)) {
                side.flights.insert(id, number);
                if let Some(handoff) = self.handoff(number) {
                    handoff.source = Some((target, id));
                }
                return;
            }
        }
        self.landing_lost(number);
    }

    /// The transfer is lost: the next prefill worker, or the leader itself.
    pub(super) fn landing_lost(&mut self, number: u64) {
        let now = Time(self.now);
        let Some(flight) = self.flights.get(&number) else { return };
        let (Some((leader, id)), Some(handoff)) = (flight.leader, &flight.handoff) else { return };
        let fallback = if !handoff.targets.is_empty() && !handoff.sampled {
            Fallback::Again
        } else if handoff.local_prefill_forbidden {
            Fallback::Fail("no prefill worker is left".to_owned())
        } else {
            Fallback::Local
        };
        let side = &mut self.workers[leader];
        // Nothing moves any more when a worker is lost here: no write can arrive.
        if side.scheduler.landing_failed(id, fallback, now).is_ok() {
            side.scheduler.quarantine_released(id, now);
        }
        if let Some(handoff) = self.handoff(number) {
            handoff.source = None;
            handoff.transfer = 0;
        }
        self.touched.insert(leader);
    }

    fn handoff(&mut self, number: u64) -> Option<&mut Handoff> {
        self.flights.get_mut(&number)?.handoff.as_mut()
    }

    /// The flight whose prompt this worker computes as this request.
    fn sources(&self, worker: usize, request: RequestId) -> Option<u64> {
        let number = *self.workers[worker].flights.get(&request)?;
        let handoff = self.flights.get(&number)?.handoff.as_ref()?;
        (handoff.source == Some((worker, request))).then_some(number)
    }

    pub(super) fn source_begins(&mut self, worker: usize, request: RequestId, computed_to: usize) {
        let Some(number) = self.sources(worker, request) else { return };
        let Some(flight) = self.flights.get_mut(&number) else { return };
        let (Some((leader, id)), Some(handoff)) = (flight.leader, &mut flight.handoff) else { return };
        if !flight.lost {
            let cached = computed_to.max(handoff.from).min(flight.prompt.len());
            flight.cached = flight.cached.max(cached as u64);
        }
        handoff.computed_to = handoff.computed_to.max(computed_to);
        // A leader that does not want it any more says so itself.
        let _ = self.workers[leader].scheduler.landing_begin(id, Time(self.now));
        self.touched.insert(leader);
    }

    pub(super) fn granted(
        &mut self,
        worker: usize,
        request: RequestId,
        window: WindowIndex,
        tokens: Range<usize>,
    ) {
        let Some(number) = self.leads(worker, request) else { return };
        let now = Time(self.now);
        let Some(handoff) = self.handoff(number) else { return };
        handoff.windows.push_back((window, tokens));
        if let Some((source, id)) = handoff.source {
            self.workers[source].scheduler.source_granted(id, now);
            self.touched.insert(source);
        }
        self.send(number);
    }

    pub(super) fn source_computed(&mut self, worker: usize, request: RequestId, computed_to: usize) {
        let Some(number) = self.sources(worker, request) else { return };
        let Some(handoff) = self.handoff(number) else { return };
        handoff.computed_to = handoff.computed_to.max(computed_to);
        self.send(number);
    }

    /// Sends the oldest window, if it is computed and nothing is on its way.
    fn send(&mut self, number: u64) {
        let per_token = self.settings.machine.transfer_per_token;
        let now = self.now;
        let Some(handoff) = self.handoff(number) else { return };
        let Some((_, tokens)) = handoff.windows.front() else { return };
        if handoff.moving || tokens.end > handoff.computed_to {
            return;
        }
        let takes = per_token.saturating_mul(tokens.len() as u32);
        handoff.moving = true;
        let event = Event::Landed { flight: number, transfer: handoff.transfer };
        self.events.plan(now + takes, event);
    }

    pub(super) fn landed(&mut self, number: u64, transfer: u64) {
        let now = Time(self.now);
        let Some(flight) = self.flights.get_mut(&number) else { return };
        let (Some((leader, id)), Some(handoff)) = (flight.leader, &mut flight.handoff) else { return };
        if handoff.transfer != transfer {
            return;
        }
        let Some((window, tokens)) = handoff.windows.pop_front() else { return };
        handoff.moving = false;
        handoff.landed_to = tokens.end;
        let _ = self.workers[leader].scheduler.landing_landed(id, window, now);
        self.touched.insert(leader);
        self.send(number);
        self.commit(number);
    }

    pub(super) fn source_sampled(&mut self, worker: usize, request: RequestId, tokens: Vec<(u32, Sampled)>) {
        let Some(number) = self.sources(worker, request) else { return };
        let now = Time(self.now);
        let Some(handoff) = self.handoff(number) else { return };
        handoff.sampled = true;
        let Some((leader, id)) = self.flights.get(&number).and_then(|flight| flight.leader) else { return };
        let _ = self.workers[leader].scheduler.landing_first_tokens(id, tokens, now);
        self.touched.insert(leader);
        self.commit(number);
    }

    /// When everything has landed and the first token is known, the leader decodes and the source lets go.
    fn commit(&mut self, number: u64) {
        let now = Time(self.now);
        let Some(flight) = self.flights.get(&number) else { return };
        let (Some((leader, id)), Some(handoff)) = (flight.leader, &flight.handoff) else { return };
        if !handoff.sampled || handoff.landed_to < handoff.to {
            return;
        }
        let source = handoff.source;
        let scheduler = &mut self.workers[leader].scheduler;
        if scheduler.landing_complete(id, now).is_ok() {
            let _ = scheduler.landing_committed(id, now);
        }
        self.touched.insert(leader);
        if let Some(flight) = self.flights.get_mut(&number) {
            flight.handoff = None;
        }
        self.let_go(source);
    }

    /// A prefill worker's KV is not needed any more.
    pub(super) fn let_go(&mut self, source: Option<(usize, RequestId)>) {
        let Some((worker, request)) = source else { return };
        let side = &mut self.workers[worker];
        if side.alive {
            side.scheduler.cancel(request, Time(self.now));
            side.scheduler.source_released(request, Time(self.now));
            self.touched.insert(worker);
        }
    }

    /// The leader does not want the KV any more: the request's first token was its last, say.
    pub(super) fn landing_aborted(&mut self, worker: usize, request: RequestId) {
        self.workers[worker].scheduler.quarantine_released(request, Time(self.now));
        let Some(number) = self.workers[worker].flights.get(&request) else { return };
        let Some(handoff) = self.flights.get_mut(number).and_then(|flight| flight.handoff.take()) else {
            return;
        };
        self.let_go(handoff.source);
    }
}
