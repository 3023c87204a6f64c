//! Messages of workers in the domain's terms.

use armature_contracts::convert::duration;
use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_contracts::kv::v1 as kv;
use armature_contracts::worker::v1 as wire;

use crate::domain::fit::StepModel;
use crate::domain::index::Parent;
use crate::domain::index::snapshot::Chunk;
use crate::domain::index::wire::{Batch, Event, Mark};
use crate::domain::load::Report;
use crate::domain::reservations::{Settled, Settlement};
use crate::domain::units::{BlockSize, Blocks, SequenceHash, Tier, Time, Tokens};

/// Warm peers of a rank that are looked at.
const MAX_WARM_PEERS: usize = 64;

/// How a worker's blocks are named, by its card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockNaming {
    /// Scheme of the hashes.
    pub scheme: std::sync::Arc<str>,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl BlockNaming {
    fn fits(&self, scheme: &str, block_size: u32) -> bool {
        *self.scheme == *scheme && self.block_size.0 == block_size
    }
}

/// A message cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// From another worker or incarnation.
    #[error("a message of another worker")]
    OtherWorker,
    /// Hashes by another scheme or of another block size.
    #[error("blocks are named otherwise than the card says")]
    OtherBlocks,
    /// A tier of a newer version.
    #[error("an unknown tier")]
    UnknownTier,
    /// Nothing in it.
    #[error("an empty message")]
    Empty,
}

impl Unusable {
    /// A short name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::OtherWorker => "other_worker",
            Self::OtherBlocks => "other_blocks",
            Self::UnknownTier => "unknown_tier",
            Self::Empty => "empty",
        }
    }
}

/// Reports of the ranks of a worker.
pub fn reports(
    message: &wire::WatchStateResponse,
    worker: WorkerRank,
    received: Time,
) -> Result<Vec<(WorkerRank, Report)>, Unusable> {
    if message.instance_id != worker.instance.0 {
        return Err(Unusable::OtherWorker);
    }
    let report = |state: &wire::RankState| {
        let rank = WorkerRank { instance: worker.instance, dp_rank: state.dp_rank };
        let report = Report {
            running: state.running,
            waiting: state.waiting,
            uncomputed: Tokens(state.uncomputed_prefill_tokens),
            active: Blocks(state.blocks_active),
            cached: Blocks(state.blocks_cached),
            free: Blocks(state.blocks_free),
            victim_age: state.next_victim_age.and_then(duration),
            draining: message.draining,
            kv_batch: state.kv_batch,
            step_model: state.step_model.as_ref().map(step_model),
            warm_peers: state.warm_peers.iter().take(MAX_WARM_PEERS).map(|id| InstanceId(*id)).collect(),
            received,
        };
        (rank, report)
    };
    Ok(message.ranks.iter().map(report).collect())
}

fn step_model(message: &wire::StepModel) -> StepModel {
    StepModel {
        base: message.base_ms,
        prefill_token: message.per_prefill_token_ms,
        decode_row: message.per_decode_row_ms,
        position: message.per_context_token_ms,
        observations: message.observations,
    }
}

/// Reservations that a report settles; entries without a valid key are left out.
pub fn settled(message: &wire::WatchStateResponse) -> Vec<Settled> {
    let settled = |entry: &wire::Settled| {
        let settlement = match entry.settlement() {
            wire::Settlement::Admitted => Settlement::Admitted,
            wire::Settlement::Refused => Settlement::Refused,
            wire::Settlement::Finished => Settlement::Finished,
            wire::Settlement::Unspecified => return None,
        };
        let key = ReservationKey::try_from(entry.reservation.as_ref()?).ok()?;
        Some(Settled { key, settlement, prefill_worker: entry.prefill_worker.map(WorkerRank::from) })
    };
    message.settled.iter().filter_map(settled).collect()
}

/// A chunk of a snapshot.
pub fn chunk(
    message: kv::KvSnapshotChunk,
    rank: WorkerRank,
    naming: &BlockNaming,
) -> Result<Chunk, Unusable> {
    check(message.worker, rank)?;
    if !naming.fits(&message.hash_scheme, message.block_size) {
        return Err(Unusable::OtherBlocks);
    }
    let blocks =
        message.blocks.into_iter().map(|blocks| Ok((tier(blocks.tier())?, hashes(blocks.sequence_hashes))));
    Ok(Chunk {
        batch: message.batch,
        chunk: message.chunk,
        chunks: message.chunks,
        blocks: blocks.collect::<Result<_, Unusable>>()?,
        count: message.count,
        digest: message.digest,
    })
}

/// A batch of events.
pub fn batch(message: kv::KvEventBatch, rank: WorkerRank, naming: &BlockNaming) -> Result<Batch, Unusable> {
    check(message.worker, rank)?;
    if !naming.fits(&message.hash_scheme, message.block_size) {
        return Err(Unusable::OtherBlocks);
    }
    let mark = Mark { batch: message.batch, count: message.count, digest: message.digest };
    let events = message.events.into_iter().map(event).collect::<Result<_, _>>()?;
    Ok(Batch { mark, events })
}

fn check(worker: Option<kv::WorkerRank>, rank: WorkerRank) -> Result<(), Unusable> {
    if worker.map(WorkerRank::from) == Some(rank) { Ok(()) } else { Err(Unusable::OtherWorker) }
}

fn event(message: kv::KvEvent) -> Result<Event, Unusable> {
    match message.event.ok_or(Unusable::Empty)? {
        kv::kv_event::Event::Stored(stored) => Ok(Event::Stored {
            tier: tier(stored.tier())?,
            parent: stored.parent.map_or(Parent::Root, |parent| Parent::Block(SequenceHash(parent))),
            blocks: hashes(stored.sequence_hashes),
        }),
        kv::kv_event::Event::Removed(removed) => {
            Ok(Event::Removed { tier: tier(removed.tier())?, blocks: hashes(removed.sequence_hashes) })
        }
        kv::kv_event::Event::Cleared(_) => Ok(Event::Cleared),
    }
}

fn hashes(list: Vec<u64>) -> Vec<SequenceHash> {
    list.into_iter().map(SequenceHash).collect()
}

fn tier(tier: kv::Tier) -> Result<Tier, Unusable> {
    match tier {
        kv::Tier::Device => Ok(Tier::Device),
        kv::Tier::Host => Ok(Tier::Host),
        kv::Tier::Disk => Ok(Tier::Disk),
        kv::Tier::Object => Ok(Tier::Object),
        kv::Tier::Unspecified => Err(Unusable::UnknownTier),
    }
}
