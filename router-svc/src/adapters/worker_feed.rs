//! The streams of one worker: its load (WatchState) and its KV events (WatchKv), opened again for as long as the worker is a member.
//!
//! With Redis the KV stream is open only while [`super::redis`] wants the worker itself asked.
//! Whatever puts a rank's blocks in doubt ends its stream, and the next one begins with a snapshot. Snapshots of a rank keep an interval,
//! and only a few ranks take one at a time, so that a restarted router does not stop its workers.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;
use armature_contracts::worker::v1::watch_kv_response::Event as KvMessage;
use armature_contracts::worker::v1::worker_service_client::WorkerServiceClient;
use armature_contracts::worker::v1::{WatchKvRequest, WatchStateRequest};
use armature_svc_kit::channel::Channel;
use armature_svc_kit::limited;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::backoff::Backoff;
use super::redis::Directory;
use super::redis::directory::Stay;
use super::worker_messages::{self as messages, BlockNaming, Unusable};
use crate::config::FeedConfig;
use crate::domain::index::snapshot::Assembly;
use crate::domain::index::wire::Doubt;
use crate::metrics::{ReasonLabel, StreamLabel};
use crate::shared::Shared;

/// A worker reports at least once a second: silence for so long is a broken stream.
const STATE_SILENCE: Duration = Duration::from_secs(5);
/// A batch comes at least every 30 s, empty when idle.
const KV_SILENCE: Duration = Duration::from_secs(65);
/// Time to open a stream.
const OPEN: Duration = Duration::from_secs(5);

/// What all feeds have in common.
#[derive(Clone)]
pub struct Feeds {
    /// Where everything goes.
    pub shared: Arc<Shared>,
    /// Intervals and pauses.
    pub config: FeedConfig,
    /// Snapshots at a time.
    pub snapshots: Arc<Semaphore>,
    /// Largest snapshot taken.
    pub max_snapshot_blocks: u64,
    /// Where ranks whose events come by Redis are known; none: every worker is asked itself.
    pub directory: Option<Arc<Directory>>,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the worker ended the stream")]
    Closed,
    #[error("nothing came for too long")]
    Silent,
    #[error("{}", .0.message())]
    Status(#[from] Status),
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error(transparent)]
    Doubt(#[from] Doubt),
}

impl Feeds {
    /// Follows a worker, all of its ranks, for ever. Without a naming it does not say which blocks it has.
    pub async fn follow(self, channel: Channel, ranks: Vec<WorkerRank>, naming: Option<BlockNaming>) {
        let Some(first) = ranks.first().copied() else { return };
        let told = naming.iter().flat_map(|naming| ranks.iter().map(move |rank| (*rank, naming)));
        let kv = told.map(|(rank, naming)| self.follow_kv(channel.clone(), rank, naming));
        tokio::join!(self.follow_state(channel.clone(), first), futures_util::future::join_all(kv));
    }

    async fn follow_state(&self, channel: Channel, worker: WorkerRank) {
        let mut backoff = self.backoff();
        loop {
            let Err(ended) = self.state_stream(channel.clone(), worker, &mut backoff).await;
            self.pause("state", worker, &ended, &mut backoff).await;
        }
    }

    async fn follow_kv(&self, channel: Channel, rank: WorkerRank, naming: &BlockNaming) {
        let mut backoff = self.backoff();
        let mut next_snapshot = Instant::now();
        let mut stay = self.directory.as_ref().map(|directory| directory.join(rank, naming.clone()));
        loop {
            asked(&mut stay, true).await;
            let known = self.shared.with(|router| router.kv_mark(rank));
            let permit = match known {
                Some(_) => None,
                None => {
                    sleep_until(next_snapshot).await;
                    next_snapshot = Instant::now() + Duration::from_millis(self.config.snapshot_interval_ms);
                    self.snapshots.clone().acquire_owned().await.ok()
                }
            };
            let from = known.map_or(0, |mark| mark.batch + 1);
            let stream = self.kv_stream(channel.clone(), rank, naming, from, permit, &mut backoff);
            let ended = tokio::select! {
                biased;
                () = asked(&mut stay, false) => continue,
                Err(ended) = stream => ended,
            };
            if let Ended::Doubt(doubt) = &ended {
                self.doubted(doubt.name());
            }
            if let Ended::Unusable(unusable) = &ended {
                // The stream goes on behind what could not be read.
                self.shared.with(|router| router.kv_doubt(rank));
                self.doubted(unusable.name());
            }
            self.pause("kv", rank, &ended, &mut backoff).await;
        }
    }

    async fn state_stream(
        &self,
        channel: Channel,
        worker: WorkerRank,
        backoff: &mut Backoff,
    ) -> Result<Infallible, Ended> {
        let mut client = limited!(WorkerServiceClient::new(channel));
        let interval = Duration::from_millis(self.config.report_interval_ms);
        let request = WatchStateRequest { min_interval: interval.try_into().ok() };
        let mut stream = opened(client.watch_state(request)).await?;
        loop {
            let message = next(&mut stream, STATE_SILENCE).await?;
            let now = self.shared.now();
            let reports = messages::reports(&message, worker, now)?;
            let settled = messages::settled(&message);
            self.shared.report(worker.instance, reports, &settled);
            backoff.reset();
        }
    }

    async fn kv_stream(
        &self,
        channel: Channel,
        rank: WorkerRank,
        naming: &BlockNaming,
        from_batch: u64,
        mut permit: Option<OwnedSemaphorePermit>,
        backoff: &mut Backoff,
    ) -> Result<Infallible, Ended> {
        let mut client = limited!(WorkerServiceClient::new(channel));
        let request = WatchKvRequest { dp_rank: rank.dp_rank, from_batch };
        let mut stream = opened(client.watch_kv(request)).await?;
        let mut assembly = Assembly::new(self.max_snapshot_blocks);
        loop {
            let message = next(&mut stream, KV_SILENCE).await?;
            match message.event.ok_or(Unusable::Empty)? {
                KvMessage::Snapshot(chunk) => {
                    let Some(snapshot) = assembly.push(messages::chunk(chunk, rank, naming)?)? else {
                        continue;
                    };
                    self.shared.with(|router| router.kv_snapshot(rank, &snapshot))?;
                    self.shared.metrics.snapshots.inc();
                    tracing::debug!(worker = %rank, blocks = snapshot.mark.count, "took a snapshot");
                }
                KvMessage::Batch(batch) => {
                    let batch = messages::batch(batch, rank, naming)?;
                    self.shared.with(|router| router.kv_batch(rank, &batch))?;
                }
            }
            // Known now: the next rank may take its snapshot.
            permit.take();
            backoff.reset();
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(
            Duration::from_millis(self.config.backoff_min_ms),
            Duration::from_millis(self.config.backoff_max_ms),
        )
    }

    fn doubted(&self, reason: &'static str) {
        self.shared.metrics.doubts.get_or_create(&ReasonLabel { reason }).inc();
    }

    async fn pause(&self, stream: &'static str, worker: WorkerRank, ended: &Ended, backoff: &mut Backoff) {
        let pause = backoff.pause();
        tracing::info!(stream, %worker, error = %ended, ?pause, "worker stream ended, opening it again");
        self.shared.metrics.feed_reconnects.get_or_create(&StreamLabel { stream }).inc();
        sleep(pause).await;
    }
}

/// Waits until the worker itself is to be asked, or no longer. Without Redis it always is.
async fn asked(stay: &mut Option<Stay>, wanted: bool) {
    match stay {
        Some(stay) => stay.asked(wanted).await,
        None if wanted => {}
        None => std::future::pending().await,
    }
}

/// The stream that a call opens, in time.
async fn opened<T>(
    call: impl Future<Output = Result<tonic::Response<Streaming<T>>, Status>>,
) -> Result<Streaming<T>, Ended> {
    Ok(timeout(OPEN, call).await.map_err(|_| Ended::Silent)??.into_inner())
}

/// The next message, in time.
async fn next<T>(stream: &mut Streaming<T>, silence: Duration) -> Result<T, Ended> {
    timeout(silence, stream.message()).await.map_err(|_| Ended::Silent)??.ok_or(Ended::Closed)
}
