//! A handler's hold on its request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::{Driver, Event};
use crate::domain::ids::RequestId;

/// A request in the scheduler. Dropping it cancels what is still running of it.
#[derive(Debug)]
pub struct Ticket {
    driver: Arc<Driver>,
    id: RequestId,
    events: mpsc::UnboundedReceiver<Event>,
    live: Arc<AtomicBool>,
}

impl Ticket {
    pub(super) fn new(
        driver: Arc<Driver>,
        id: RequestId,
        events: mpsc::UnboundedReceiver<Event>,
        live: Arc<AtomicBool>,
    ) -> Self {
        Self { driver, id, events, live }
    }

    /// The request's id.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The driver that runs it.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// The next event; `None` when the engine is gone.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Stops the request's computing, within a layer when it is in a pass. Events go on until it has ended.
    pub fn cancel(&self) {
        self.live.store(false, Ordering::Release);
        self.driver.with(|core, now| core.scheduler.cancel(self.id, now));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}
