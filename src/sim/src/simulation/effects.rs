//! What schedulers say.

use armature_worker::domain::ids::RequestId;
use armature_worker::domain::request::Usage;
use armature_worker::domain::scheduler::Effect;

use super::Simulation;

impl Simulation {
    /// Takes everything that a worker's scheduler has said since; whether there was anything.
    pub(super) fn take_effects(&mut self, worker: usize) -> bool {
        let effects = self.workers[worker].scheduler.take_effects();
        let any = !effects.is_empty();
        for effect in effects {
            self.effect(worker, effect);
        }
        any
    }

    fn effect(&mut self, worker: usize, effect: Effect) {
        match effect {
            Effect::Settled { .. } | Effect::ChoiceEnded { .. } => {}
            Effect::Token { request, .. } => self.token(worker, request),
            Effect::Finished { request, usage } => self.finished(worker, request, &usage),
            Effect::Failed { request, .. } => {
                if let Some(number) = self.leads(worker, request) {
                    self.workers[worker].flights.remove(&request);
                    self.refuse(number);
                }
            }
            Effect::LandingAdmitted { request, from_token, prompt_len } => {
                self.landing_admitted(worker, request, from_token..prompt_len);
            }
            Effect::Granted { request, window, tokens, .. } => self.granted(worker, request, window, tokens),
            Effect::LandingAbort { request, .. } => self.landing_aborted(worker, request),
            Effect::SourceAdmitted { request, computed_to, .. } => {
                self.source_begins(worker, request, computed_to);
            }
            Effect::SourceProgress { request, computed_to, .. } => {
                self.source_computed(worker, request, computed_to);
            }
            Effect::FirstTokens { request, tokens } => self.source_sampled(worker, request, tokens),
        }
    }

    /// The flight that a worker leads as this request.
    pub(super) fn leads(&self, worker: usize, request: RequestId) -> Option<u64> {
        let number = *self.workers[worker].flights.get(&request)?;
        (self.flights.get(&number)?.leader == Some((worker, request))).then_some(number)
    }

    fn token(&mut self, worker: usize, request: RequestId) {
        let Some(flight) = self.leads(worker, request).and_then(|number| self.flights.get_mut(&number))
        else {
            return;
        };
        flight.generated += 1;
        if flight.generated == 1 {
            flight.first_at = self.now;
            self.measure.first_token(flight.arrived, self.now);
        } else {
            self.measure.next_token(self.now - flight.last_at);
        }
        flight.last_at = self.now;
    }

    fn finished(&mut self, worker: usize, request: RequestId, usage: &Usage) {
        let leads = self.leads(worker, request);
        self.workers[worker].flights.remove(&request);
        let Some(mut flight) = leads.and_then(|number| self.flights.remove(&number)) else { return };
        if !flight.lost {
            flight.cached = flight.cached.max(usage.cached);
        }
        self.measure.finished(&flight);
    }
}
