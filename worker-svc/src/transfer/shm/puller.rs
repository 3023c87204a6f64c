//! D's copying: one at a time per transfer, a few at a time per endpoint, none on the runtime's threads
//! for long.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore};

use crate::transfer::ids::PeerBlock;
use crate::transfer::landing::core::{LandingCore, Writer};
use crate::transfer::landing::ledger::Piece;
use crate::transfer::mapping::Mapping;
use crate::transfer::message::PieceReady;
use crate::transfer::range::Extent;
use crate::transfer::reason::{Failure, Violation};
use crate::transfer::segments::{Segment, piece_bytes, segments};

/// Copied on the runtime's own thread: about 10 us.
const INLINE_BYTES: u64 = 64 << 10;
/// Copied before looking whether the transfer still lives: about 100 us.
const STRIDE_BYTES: usize = 1 << 20;
/// Copied in one visit to a blocking thread, where several pieces are waiting.
const BATCH_BYTES: u64 = 4 << 20;

#[derive(Debug)]
struct Pull {
    piece: Piece,
    source: Extent<PeerBlock>,
    destination: Extent,
}

/// The pieces that one transfer has to copy.
#[derive(Debug)]
pub(crate) struct Puller {
    mapping: Arc<Mapping>,
    /// Bounded by layers x tokens granted: each piece has claimed its cells.
    queue: Mutex<VecDeque<Pull>>,
    arrived: Notify,
}

impl Puller {
    pub(crate) fn new(mapping: Arc<Mapping>) -> Self {
        Self { mapping, queue: Mutex::default(), arrived: Notify::new() }
    }

    /// Checks an announced piece against the grants and the peer's pool and queues it.
    pub(crate) fn push(&self, core: &LandingCore, ready: PieceReady) -> Result<(), Failure> {
        if ready.transfer != core.transfer {
            return Err(Violation::OtherTransfer.into());
        }
        let block_size = core.kv.geometry().block_size as u32;
        let known = |block: &PeerBlock| (block.0 as usize) < self.mapping.blocks();
        if !ready.blocks.iter().all(known) {
            return Err(Violation::BadBlocks.into());
        }
        let source = Extent::new(ready.tokens, ready.blocks, block_size).map_err(|_| Violation::BadBlocks)?;
        let piece = Piece { window: ready.window, layers: ready.layers, tokens: ready.tokens };
        let destination = core.claim(piece)?;
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(Pull {
            piece,
            source,
            destination,
        });
        self.arrived.notify_one();
        Ok(())
    }

    /// Some pieces and their bytes; waits for one.
    async fn take(&self, core: &LandingCore) -> (Vec<Pull>, u64) {
        loop {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                while bytes < BATCH_BYTES
                    && let Some(pull) = queue.pop_front()
                {
                    let Piece { layers, tokens, .. } = pull.piece;
                    bytes += piece_bytes(core.kv.geometry(), layers.len(), tokens.len());
                    batch.push(pull);
                }
            }
            if !batch.is_empty() {
                return (batch, bytes);
            }
            self.arrived.notified().await;
        }
    }
}

/// Copies until the transfer is over.
pub(crate) async fn run(core: Arc<LandingCore>, puller: Arc<Puller>, writer: Writer, copies: Arc<Semaphore>) {
    let pulling = async {
        loop {
            let (batch, bytes) = puller.take(&core).await;
            if bytes <= INLINE_BYTES {
                copy_all(&core, &puller.mapping, &batch);
                tokio::task::consume_budget().await;
                continue;
            }
            let Ok(permit) = Arc::clone(&copies).acquire_owned().await else { return };
            let (core_there, puller_there, writer_there) =
                (Arc::clone(&core), Arc::clone(&puller), writer.clone());
            // The closure holds a writer of its own: it runs to its end even where this task does not.
            let copied = tokio::task::spawn_blocking(move || {
                let _held = (permit, writer_there);
                copy_all(&core_there, &puller_there.mapping, &batch);
            });
            if copied.await.is_err() {
                core.fail(Failure::CopyDied);
            }
        }
    };
    core.ended.run_until_cancelled(pulling).await;
}

fn copy_all(core: &LandingCore, mapping: &Mapping, batch: &[Pull]) {
    let geometry = core.kv.geometry();
    for pull in batch {
        let from = segments(geometry, pull.piece.layers, &pull.source);
        let to = segments(geometry, pull.piece.layers, &pull.destination);
        for (from, to) in from.iter().zip(&to) {
            let mut done = 0;
            while done < from.bytes.len() {
                if core.ended.is_cancelled() {
                    return;
                }
                let len = STRIDE_BYTES.min(from.bytes.len() - done);
                let start = from.bytes.start + done;
                let part = Segment { block: from.block, bytes: start..start + len };
                let start = to.bytes.start + done;
                mapping.copy(&part, core.kv.bytes_mut(to.block, start..start + len));
                done += len;
            }
        }
        core.landed(pull.piece);
    }
}
