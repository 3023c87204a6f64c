//! WatchKv: a snapshot if needed, then batches from the event log's ring.

use std::sync::Arc;

use armature_contracts::error::Fault;
use armature_contracts::worker::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert;
use crate::worker::Worker;

/// Messages that wait for a slow reader; it reads from the ring meanwhile and is given a snapshot when it falls out of it.
const BUFFER: usize = 4;

pub(super) fn start(
    worker: &Arc<Worker>,
    request: &wire::WatchKvRequest,
) -> Result<ReceiverStream<Result<wire::WatchKvResponse, Status>>, Status> {
    if request.dp_rank != 0 {
        let text = format!("rank {} does not exist: this engine has rank 0 only", request.dp_rank);
        return Err(Fault::invalid("dp_rank", text).into());
    }
    let (messages, stream) = mpsc::channel(BUFFER);
    worker.tasks.spawn(run(Arc::clone(worker), request.from_batch, messages));
    Ok(ReceiverStream::new(stream))
}

async fn run(
    worker: Arc<Worker>,
    from_batch: u64,
    messages: mpsc::Sender<Result<wire::WatchKvResponse, Status>>,
) {
    let mut announced = worker.driver.kv_batch();
    let mut failed = worker.driver.failed();
    let mut next = from_batch;
    loop {
        announced.mark_unchanged();
        for event in read_on(&worker, &mut next) {
            if messages.send(Ok(wire::WatchKvResponse { event: Some(event) })).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = messages.closed() => return,
            () = worker.drain.stopping() => return,
            _ = failed.wait_for(Option::is_some) => return,
            changed = announced.changed() => if changed.is_err() { return },
        }
    }
}

/// What a reader that wants batch `next` is sent now; advances `next`. 0 wants a snapshot.
fn read_on(worker: &Worker, next: &mut u64) -> Vec<wire::watch_kv_response::Event> {
    use wire::watch_kv_response::Event;
    let me = &worker.identity;
    let batches = worker.driver.kv_events(|events, _| if *next == 0 { None } else { events.resume(*next) });
    if let Some(batches) = batches {
        *next = batches.last().map_or(*next, |batch| batch.number + 1);
        return batches.iter().map(|batch| Event::Batch(convert::kv_batch(batch, me))).collect();
    }
    let (snapshot, _) = worker.driver.kv_events(|events, now| events.snapshot(now));
    *next = snapshot.at + 1;
    convert::kv_snapshot(&snapshot, me).into_iter().map(Event::Snapshot).collect()
}
