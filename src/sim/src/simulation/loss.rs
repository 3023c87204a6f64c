//! A worker is lost: what it computed is gone, and its requests go on elsewhere with the tokens that have come.

use super::Simulation;

impl Simulation {
    pub(super) fn kill(&mut self, worker: usize) {
        if !std::mem::replace(&mut self.workers[worker].alive, false) {
            return;
        }
        let mut flights: Vec<u64> = std::mem::take(&mut self.workers[worker].flights).into_values().collect();
        flights.sort_unstable();
        self.router.lose(worker, self.now);
        for number in flights {
            let Some(flight) = self.flights.get_mut(&number) else { continue };
            if flight.leader.is_some_and(|(leader, _)| leader == worker) {
                let key = flight.key(number);
                flight.leader = None;
                flight.lost = true;
                let source = flight.handoff.take().and_then(|handoff| handoff.source);
                self.router.release(key, self.now);
                self.let_go(source);
                self.measure.migrated();
                self.dispatch(number);
            } else if flight
                .handoff
                .as_ref()
                .is_some_and(|handoff| handoff.source.is_some_and(|(source, _)| source == worker))
            {
                self.landing_lost(number);
            }
        }
    }
}
