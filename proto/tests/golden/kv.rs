//! The shared KV vocabulary.

use armature_contracts::kv::v1 as kv;

use crate::{Golden, digest, golden};

pub(crate) fn all() -> Vec<Golden> {
    vec![
        golden("armature.kv.v1.BlockHashes", block_hashes()),
        golden("armature.kv.v1.KvLayout", layout()),
        golden("armature.kv.v1.KvEventBatch", event_batch()),
        golden("armature.kv.v1.KvSnapshotChunk", snapshot_chunk()),
        golden("armature.kv.v1.KvSnapshotPointer", snapshot_pointer()),
    ]
}

pub(crate) fn rank(instance_id: u64) -> kv::WorkerRank {
    kv::WorkerRank { instance_id, dp_rank: 1 }
}

pub(crate) fn block_hashes() -> kv::BlockHashes {
    kv::BlockHashes {
        hash_scheme: "armature-xxh3-v1".into(),
        block_size: 64,
        sequence_hashes: vec![1, u64::MAX, 0x0123_4567_89ab_cdef],
    }
}

pub(crate) fn shard() -> kv::ShardMap {
    kv::ShardMap {
        tensor_parallel: 2,
        pipeline_parallel: 1,
        layer_start: 8,
        layer_count: 24,
        head_start: 4,
        head_count: 4,
    }
}

pub(crate) fn layout() -> kv::KvLayout {
    let tensor = kv::TensorSpec { name: "k".into(), dtype: "f32".into(), shape: vec![16, 3, 64], scale: 0.5 };
    let group = kv::LayerGroup {
        kind: kv::GroupKind::SlidingWindow.into(),
        layers: 30,
        tensors: vec![tensor],
        window: 4096,
    };
    kv::KvLayout { groups: vec![group], shard: Some(shard()), compat_key: digest(4) }
}

pub(crate) fn event_batch() -> kv::KvEventBatch {
    use kv::kv_event::Event;
    let events = [
        Event::Stored(kv::KvStored {
            tier: kv::Tier::Device.into(),
            parent: Some(7),
            sequence_hashes: vec![8, 9],
        }),
        Event::Removed(kv::KvRemoved { tier: kv::Tier::Host.into(), sequence_hashes: vec![6] }),
        Event::Cleared(kv::KvCleared {}),
    ];
    kv::KvEventBatch {
        worker: Some(rank(3)),
        batch: 1001,
        events: events.map(|event| kv::KvEvent { event: Some(event) }).into(),
        count: 12,
        digest: 0xfeed,
        hash_scheme: "armature-xxh3-v1".into(),
        block_size: 16,
    }
}

pub(crate) fn snapshot_chunk() -> kv::KvSnapshotChunk {
    kv::KvSnapshotChunk {
        worker: Some(rank(3)),
        batch: 1001,
        chunk: 1,
        chunks: 2,
        blocks: vec![kv::TierBlocks { tier: kv::Tier::Disk.into(), sequence_hashes: vec![1, 2] }],
        count: 2,
        digest: 0xfeed,
        hash_scheme: "armature-xxh3-v1".into(),
        block_size: 16,
    }
}

fn snapshot_pointer() -> kv::KvSnapshotPointer {
    kv::KvSnapshotPointer {
        worker: Some(rank(3)),
        batch: 1001,
        chunks: 2,
        count: 40_000,
        digest: 0xfeed,
        hash_scheme: "armature-xxh3-v1".into(),
        block_size: 16,
    }
}
