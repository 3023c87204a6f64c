//! P's end: hands the pool's descriptor to peers that prove a transfer's secret.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pool;
use crate::transfer::ids::Incarnation;
use crate::transfer::proof::{self, Channel};
use crate::transfer::registry::Registry;
use crate::transfer::source::core::SourceCore;

/// Rest after a failed accept (too many open files), so as not to spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A bound socket; its file goes when it does.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Binds the socket of `incarnation`, which nobody else can have.
    pub(crate) fn bind(directory: &Path, incarnation: Incarnation) -> io::Result<Self> {
        let path = pool::socket_path(directory, incarnation);
        let listener = UnixListener::bind(&path)?;
        Ok(Self { listener, path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "socket file was not removed");
        }
    }
}

/// Who may ask, and how many at a time.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    pub(crate) sources: Arc<Registry<SourceCore>>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) handshake_timeout: Duration,
}

/// Serves peers until `closing`.
pub(crate) async fn serve(socket: Socket, counter: Counter, closing: CancellationToken, tasks: TaskTracker) {
    let accepting = async {
        while let Ok(place) = Arc::clone(&counter.places).acquire_owned().await {
            match socket.listener.accept().await {
                Ok((stream, _)) => {
                    let closing = closing.clone();
                    let visit = visit(stream, counter.clone(), place);
                    tasks.spawn(async move { closing.run_until_cancelled(visit).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on the pool's socket");
                    sleep(ACCEPT_RETRY).await;
                }
            }
        }
    };
    closing.run_until_cancelled(accepting).await;
}

async fn visit(mut stream: UnixStream, counter: Counter, _place: OwnedSemaphorePermit) {
    let lookup = |transfer| {
        let core = counter.sources.find(transfer).filter(|core| core.exports)?;
        Some((core.secret.clone(), core))
    };
    let serving = async {
        let core = proof::answer(&mut stream, Channel::Descriptor, rand::random(), lookup).await?;
        pool::send(&stream, &core.kv).await?;
        Ok::<_, proof::ProofError>(())
    };
    match timeout(counter.handshake_timeout, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "refused to hand out the pool"),
        Err(_) => tracing::debug!("peer at the pool's socket proved nothing in time"),
    }
}
