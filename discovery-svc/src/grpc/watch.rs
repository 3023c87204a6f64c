//! A watch stream, pulled by its reader: there is no queue. What a slow reader has not taken stays in the view's ring, and a reader that
//! has fallen out of the ring gets a snapshot.

use std::collections::VecDeque;
use std::sync::Arc;

use armature_contracts::discovery::v1::WatchResponse;
use armature_svc_kit::drain::Drain;
use futures_util::Stream;
use futures_util::stream;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::Status;

use super::convert;
use crate::domain::view::{Revision, Told, Watcher};
use crate::replica::Replica;

/// One of the watchers that are served; counted while it lives.
pub struct Seat {
    _permit: OwnedSemaphorePermit,
    taken: Gauge,
}

impl Seat {
    /// Takes a seat.
    pub fn new(permit: OwnedSemaphorePermit, taken: Gauge) -> Self {
        taken.inc();
        Self { _permit: permit, taken }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.dec();
    }
}

struct Watching {
    replica: Arc<Replica>,
    watcher: Watcher,
    wake: watch::Receiver<(Revision, bool)>,
    /// Of the last reading; at most the ring.
    unsent: VecDeque<Told>,
    _seat: Seat,
}

impl Watching {
    async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some(told) = self.unsent.pop_front() {
                return Some(told);
            }
            self.wake.borrow_and_update();
            self.unsent = self.replica.read(&mut self.watcher).told.into();
            if self.unsent.is_empty() {
                self.wake.changed().await.ok()?;
            }
        }
    }
}

/// Tells a watcher everything until it goes away or the service stops.
pub fn told(
    replica: Arc<Replica>,
    watcher: Watcher,
    seat: Seat,
    drain: Drain,
) -> impl Stream<Item = Result<WatchResponse, Status>> + Send {
    let epoch = replica.view_epoch();
    let wake = replica.wake();
    let watching = Watching { replica, watcher, wake, unsent: VecDeque::new(), _seat: seat };
    stream::unfold((watching, drain), move |(mut watching, drain)| async move {
        let told = tokio::select! {
            told = watching.next() => told?,
            () = drain.stopping() => return None,
        };
        Some((Ok(convert::told(told, epoch)), (watching, drain)))
    })
}
