//! A handler's hold on its request.

use std::fmt;

use tokio::sync::mpsc;

use super::Event;
use crate::domain::ids::RequestId;

/// A request that has been taken. Dropping it cancels what is still running of it.
pub struct Ticket {
    id: RequestId,
    events: mpsc::UnboundedReceiver<Event>,
    cancel: Box<dyn Fn() + Send + Sync>,
}

impl Ticket {
    /// Of request `id`, whose events come through `events`; `cancel` stops it, at once and as often as it is called.
    pub fn new(
        id: RequestId,
        events: mpsc::UnboundedReceiver<Event>,
        cancel: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { id, events, cancel: Box::new(cancel) }
    }

    /// The request's id.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` when the engine is gone.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Stops the request's computing, within a layer when it is in a pass. Events go on until it has ended.
    pub fn cancel(&self) {
        (self.cancel)();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).finish_non_exhaustive()
    }
}
