//! The KV event log as messages, for whoever reads it: streams of WatchKv, and Redis.

use armature_contracts::ids::WorkerRank;
use armature_contracts::kv::v1 as kv;
use armature_kv_hash::HASH_SCHEME;

use crate::domain::kv_events::{KvBatch, KvEntry, KvSnapshot};
use crate::identity::Identity;

/// Hashes in one message of a snapshot: 256 KiB.
const SNAPSHOT_CHUNK: usize = 32 * 1024;

/// A batch.
pub fn batch(batch: &KvBatch, worker: WorkerRank, me: &Identity) -> kv::KvEventBatch {
    let removed = by_tier(&batch.removed).into_iter().map(|blocks| {
        kv::kv_event::Event::Removed(kv::KvRemoved {
            tier: blocks.tier,
            sequence_hashes: blocks.sequence_hashes,
        })
    });
    let stored = by_tier(&batch.stored).into_iter().map(|blocks| {
        kv::kv_event::Event::Stored(kv::KvStored {
            tier: blocks.tier,
            parent: None,
            sequence_hashes: blocks.sequence_hashes,
        })
    });
    kv::KvEventBatch {
        worker: Some(worker.into()),
        batch: batch.number,
        events: removed.chain(stored).map(|event| kv::KvEvent { event: Some(event) }).collect(),
        count: batch.count,
        digest: batch.digest,
        hash_scheme: HASH_SCHEME.into(),
        block_size: me.block_size() as u32,
    }
}

/// How many chunks a snapshot has; at least one.
pub fn chunks(snapshot: &KvSnapshot) -> u32 {
    snapshot.entries.len().div_ceil(SNAPSHOT_CHUNK).max(1) as u32
}

/// One chunk of a snapshot. They are made one by one, so that a large set is not held twice.
pub fn chunk(snapshot: &KvSnapshot, worker: WorkerRank, me: &Identity, chunk: u32) -> kv::KvSnapshotChunk {
    let from = (chunk as usize * SNAPSHOT_CHUNK).min(snapshot.entries.len());
    let to = (from + SNAPSHOT_CHUNK).min(snapshot.entries.len());
    kv::KvSnapshotChunk {
        worker: Some(worker.into()),
        batch: snapshot.at,
        chunk,
        chunks: chunks(snapshot),
        blocks: by_tier(&snapshot.entries[from..to]),
        count: snapshot.entries.len() as u64,
        digest: snapshot.digest,
        hash_scheme: HASH_SCHEME.into(),
        block_size: me.block_size() as u32,
    }
}

/// What says that all chunks of a snapshot are there.
pub fn pointer(snapshot: &KvSnapshot, worker: WorkerRank, me: &Identity) -> kv::KvSnapshotPointer {
    kv::KvSnapshotPointer {
        worker: Some(worker.into()),
        batch: snapshot.at,
        chunks: chunks(snapshot),
        count: snapshot.entries.len() as u64,
        digest: snapshot.digest,
        hash_scheme: HASH_SCHEME.into(),
        block_size: me.block_size() as u32,
    }
}

fn by_tier(entries: &[KvEntry]) -> Vec<kv::TierBlocks> {
    let mut tiers: Vec<kv::TierBlocks> = Vec::new();
    for (hash, tier) in entries {
        let tier = i32::from(tier.0);
        match tiers.iter_mut().find(|blocks| blocks.tier == tier) {
            Some(blocks) => blocks.sequence_hashes.push(hash.0),
            None => tiers.push(kv::TierBlocks { tier, sequence_hashes: vec![hash.0] }),
        }
    }
    tiers
}
