//! WatchState: a full report at once, then on change, and at least once a second. The stream ends with the incarnation that it tells of.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::convert::duration;
use armature_contracts::error::Fault;
use armature_contracts::ids::{ReservationKey, WorkerRank};
use armature_contracts::worker::v1 as wire;
use armature_svc_kit::drain::Phase;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert;
use crate::domain::kv_events::KvState;
use crate::domain::report::SettledCursor;
use crate::ports;
use crate::worker::Served;

const DEFAULT_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Reports that wait for a slow subscriber: one on its way, one behind it; a report not yet made gathers the rest.
const BUFFER: usize = 1;

pub(super) fn start(
    worker: &Arc<Served>,
    request: &wire::WatchStateRequest,
) -> Result<ReceiverStream<Result<wire::WatchStateResponse, Status>>, Status> {
    let interval = match request.min_interval {
        None => DEFAULT_INTERVAL,
        Some(asked) => {
            duration(asked).ok_or_else(|| Fault::invalid("min_interval", "is not a span of time"))?
        }
    };
    if interval > MAX_INTERVAL {
        return Err(Fault::invalid("min_interval", format!("{interval:?} is above the limit of 1 s")).into());
    }
    let (reports, stream) = mpsc::channel(BUFFER);
    let me = worker.backend.rank();
    let feed = Feed { worker: Arc::clone(worker), me, interval, cursor: None, seq: 0 };
    worker.tasks.spawn(feed.run(reports));
    Ok(ReceiverStream::new(stream))
}

struct Feed {
    worker: Arc<Served>,
    me: WorkerRank,
    interval: Duration,
    cursor: Option<SettledCursor>,
    seq: u64,
}

impl Feed {
    async fn run(mut self, reports: mpsc::Sender<Result<wire::WatchStateResponse, Status>>) {
        let mut changed = self.worker.backend.changed();
        let mut failed = self.worker.backend.failed();
        loop {
            changed.mark_unchanged();
            let sent = Instant::now();
            let report = self.report();
            // Looked at after the report was made: it is of this incarnation as a whole.
            if self.worker.backend.rank() != self.me || reports.send(Ok(report)).await.is_err() {
                return;
            }
            tokio::select! {
                () = reports.closed() => return,
                () = self.worker.drain.stopping() => return,
                _ = failed.wait_for(Option::is_some) => return,
                () = ports::fenced(&*self.worker.backend, self.me) => return,
                // Both an answer of the driver and the second's end are a reason to report.
                _ = timeout_at(sent + MAX_INTERVAL, changed.changed()) => {}
            }
            sleep_until(sent + self.interval).await;
        }
    }

    fn report(&mut self) -> wire::WatchStateResponse {
        let worker = &self.worker;
        let report = worker.backend.report(self.cursor);
        self.cursor = Some(report.cursor);
        self.seq += 1;
        let mut kv = KvState::default();
        worker.backend.with_kv_events(&mut |events, _| kv = events.last_state());
        let settled = report.settled.iter().map(|(key, settlement)| {
            let key = ReservationKey { id: key.id, attempt: key.attempt };
            wire::Settled {
                reservation: Some(key.into()),
                settlement: convert::settlement(*settlement).into(),
                prefill_worker: worker.own.as_ref().and_then(|own| own.prefill_used.of(key)).map(Into::into),
            }
        });
        wire::WatchStateResponse {
            report_seq: self.seq,
            instance_id: self.me.instance.0,
            settled: settled.collect(),
            ranks: vec![convert::rank_state(&report, kv, worker.backend.counters())],
            draining: worker.drain.phase() != Phase::Serving,
        }
    }
}
