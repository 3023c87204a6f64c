//! D's KV data port.
//!
//! A connection holds one of a few places until it has proven a secret, and each only for the
//! handshake's timeout: garbage costs a place for a moment and touches nothing else. Connections that
//! have proven are as many as transfers, for each transfer takes one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::receiver;
use crate::transfer::landing::core::LandingCore;
use crate::transfer::proof::{self, Channel};
use crate::transfer::registry::Registry;

/// Rest after a failed accept (too many open files), so as not to spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) landings: Arc<Registry<LandingCore>>,
    /// Connections that have not proven anything yet.
    pub(crate) unproven: Arc<Semaphore>,
    /// Connections that have, with those that only wait for their status to be read.
    pub(crate) proven: Arc<Semaphore>,
    pub(crate) handshake_timeout: Duration,
    /// Connections turned away.
    pub(crate) refused: Arc<AtomicU64>,
}

impl Door {
    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Accepts connections until `closing`.
pub(crate) async fn serve(listener: TcpListener, door: Door, closing: CancellationToken, tasks: TaskTracker) {
    let accepting = async {
        while let Ok(place) = Arc::clone(&door.unproven).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let closing = closing.clone();
                    let connection = connection(stream, door.clone(), place);
                    tasks.spawn(async move { closing.run_until_cancelled(connection).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on the kv data port");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    };
    closing.run_until_cancelled(accepting).await;
}

async fn connection(mut stream: TcpStream, door: Door, place: OwnedSemaphorePermit) {
    let lookup = |transfer| door.landings.find(transfer).map(|core| (core.secret.clone(), core));
    let answering = async {
        stream.set_nodelay(true)?;
        proof::answer(&mut stream, Channel::Frames, rand::random(), lookup).await
    };
    let core = match timeout(door.handshake_timeout, answering).await {
        Ok(Ok(core)) => core,
        Ok(Err(error)) => {
            door.refuse();
            return tracing::debug!(%error, "refused a kv data connection");
        }
        Err(_) => {
            door.refuse();
            return tracing::debug!("kv data connection proved nothing in time");
        }
    };
    drop(place);
    let Ok(_proven) = door.proven.try_acquire() else {
        door.refuse();
        return tracing::warn!(transfer = %core.transfer, "too many kv data connections");
    };
    match core.connection() {
        Some(writer) => receiver::run(core, stream, writer).await,
        None => {
            door.refuse();
            tracing::debug!(transfer = %core.transfer, "transfer takes no connection");
        }
    }
}
