//! WatchKv: a snapshot if needed, then batches from the event log's ring. The stream ends with the incarnation that it tells of.

use std::sync::Arc;

use armature_contracts::error::Fault;
use armature_contracts::ids::WorkerRank;
use armature_contracts::worker::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use wire::watch_kv_response::Event;

use crate::domain::kv_events::{KvBatch, KvSnapshot};
use crate::kv_wire;
use crate::ports;
use crate::worker::Served;

/// Messages that wait for a slow reader; it reads from the ring meanwhile and is given a snapshot when it falls out of it.
const BUFFER: usize = 4;

pub(super) fn start(
    worker: &Arc<Served>,
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
    worker: Arc<Served>,
    from_batch: u64,
    messages: mpsc::Sender<Result<wire::WatchKvResponse, Status>>,
) {
    let mut announced = worker.backend.kv_batch();
    let mut failed = worker.backend.failed();
    let me = worker.backend.rank();
    let mut next = from_batch;
    loop {
        announced.mark_unchanged();
        for event in read_on(&worker, me, &mut next) {
            if messages.send(Ok(wire::WatchKvResponse { event: Some(event) })).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = messages.closed() => return,
            () = worker.drain.stopping() => return,
            _ = failed.wait_for(Option::is_some) => return,
            () = ports::fenced(&*worker.backend, me) => return,
            changed = announced.changed() => if changed.is_err() { return },
        }
    }
}

/// What the log has for a reader.
enum Read {
    Batches(Vec<Arc<KvBatch>>),
    Snapshot(KvSnapshot),
}

/// What a reader of `me` that wants batch `next` is sent now; advances `next`. 0 wants a snapshot. Nothing once `me` is fenced.
fn read_on(worker: &Served, me: WorkerRank, next: &mut u64) -> Vec<Event> {
    let mut read = Read::Batches(Vec::new());
    worker.backend.with_kv_events(&mut |events, now| {
        if worker.backend.rank() == me {
            let batches = if *next == 0 { None } else { events.resume(*next) };
            read = batches.map_or_else(|| Read::Snapshot(events.snapshot(now).0), Read::Batches);
        }
    });
    match read {
        Read::Batches(batches) => {
            *next = batches.last().map_or(*next, |batch| batch.number + 1);
            let wire = |batch: &Arc<KvBatch>| Event::Batch(kv_wire::batch(batch, me, &worker.identity));
            batches.iter().map(wire).collect()
        }
        Read::Snapshot(snapshot) => {
            *next = snapshot.at + 1;
            let wire = |chunk| Event::Snapshot(kv_wire::chunk(&snapshot, me, &worker.identity, chunk));
            (0..kv_wire::chunks(&snapshot)).map(wire).collect()
        }
    }
}
