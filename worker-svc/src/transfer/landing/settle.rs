//! Which transport a landing uses, and what it needs for it.

use std::sync::{Arc, OnceLock};

use tokio_util::task::TaskTracker;

use super::core::LandingCore;
use crate::transfer::ids::Incarnation;
use crate::transfer::message::{Acceptance, Chosen, PieceReady, TransportKind};
use crate::transfer::reason::{Failure, ShmRefusal, Violation};
use crate::transfer::shm::importer::Importer;
use crate::transfer::shm::puller::{self, Puller};

#[derive(Debug)]
pub(crate) struct Settle {
    /// Whether there is a listener.
    tcp: bool,
    importer: Option<Arc<Importer>>,
    puller: OnceLock<Arc<Puller>>,
    tasks: TaskTracker,
}

impl Settle {
    pub(crate) fn new(tcp: bool, importer: Option<Arc<Importer>>, tasks: TaskTracker) -> Self {
        Self { tcp, importer, puller: OnceLock::new(), tasks }
    }

    /// Takes P's answer; fetches its pool where that is what it offers.
    pub(crate) async fn settle(
        &self,
        core: &Arc<LandingCore>,
        acceptance: Acceptance,
    ) -> Result<Chosen, Failure> {
        let shm_refused = match acceptance {
            Acceptance::Tcp { shm_refused } => shm_refused,
            Acceptance::Shm { incarnation } => match self.fetch(core, incarnation).await {
                Ok(puller) => return self.begin_to_pull(core, puller),
                Err(refusal) => Some(refusal),
            },
        };
        if !self.tcp {
            return Err(Failure::NoTransport(shm_refused.unwrap_or(ShmRefusal::NotConfigured)));
        }
        core.ledger().settle(Chosen { transport: TransportKind::Tcp, shm_refused })
    }

    async fn fetch(&self, core: &LandingCore, incarnation: Incarnation) -> Result<Arc<Puller>, ShmRefusal> {
        let importer = self.importer.as_ref().ok_or(ShmRefusal::NotConfigured)?;
        let mapping = importer.fetch(incarnation, core.transfer, &core.secret).await?;
        Ok(Arc::new(Puller::new(mapping)))
    }

    fn begin_to_pull(&self, core: &Arc<LandingCore>, puller: Arc<Puller>) -> Result<Chosen, Failure> {
        let chosen = Chosen { transport: TransportKind::Shm, shm_refused: None };
        let settled = core.ledger().settle(chosen)?;
        // Of two calls at once the first has begun.
        if settled == chosen
            && let Some(importer) = &self.importer
            && self.puller.set(Arc::clone(&puller)).is_ok()
        {
            let writer = core.writer()?;
            let copies = Arc::clone(&importer.copies);
            self.tasks.spawn(puller::run(Arc::clone(core), puller, writer, copies));
        }
        Ok(settled)
    }

    pub(crate) fn piece_ready(&self, core: &LandingCore, piece: PieceReady) -> Result<(), Failure> {
        core.ledger().check_open()?;
        self.puller.get().ok_or(Violation::WrongTransport)?.push(core, piece)
    }
}
