//! Takes the newest snapshot of a rank: pointer, then chunks, a few at a time.

use armature_contracts::ids::WorkerRank;
use armature_contracts::kv::v1 as kv;
use armature_kv_redis::keys::RankKeys;
use armature_kv_redis::{Command, Lost, Reply, Store};
use prost::Message as _;

use crate::adapters::worker_messages::{self as messages, BlockNaming};
use crate::domain::index::snapshot::{Assembly, Snapshot};
use crate::domain::kv_reader::Remedy;

/// Chunks asked for at a time: a megabyte.
const AT_ONCE: u32 = 4;
/// Looks at the pointer: the publisher may drop what it led to while it is read.
const TRIES: usize = 2;

/// What became of a load.
pub(super) type Loaded = Result<Result<Snapshot, Remedy>, Lost>;

/// Loads the newest snapshot of `rank` of at most `max_blocks`.
pub(super) async fn load<S: Store>(
    mut store: S,
    keys: RankKeys,
    rank: WorkerRank,
    naming: BlockNaming,
    max_blocks: u64,
) -> Loaded {
    for _ in 0..TRIES {
        let newest = Command::Newest { key: keys.snapshots.clone(), count: 1 };
        let Some(Reply::Entries(entries)) = store.run(vec![newest]).await?.pop() else { break };
        let Some(entry) = entries.into_iter().next() else { break };
        let Ok(pointer) = kv::KvSnapshotPointer::decode(entry.payload) else {
            return Ok(Err(Remedy::Unreadable));
        };
        match chunks(&mut store, &keys, &pointer, rank, &naming, max_blocks).await? {
            Err(Remedy::NoSnapshot) => {}
            found => return Ok(found),
        }
    }
    Ok(Err(Remedy::NoSnapshot))
}

async fn chunks<S: Store>(
    store: &mut S,
    keys: &RankKeys,
    pointer: &kv::KvSnapshotPointer,
    rank: WorkerRank,
    naming: &BlockNaming,
    max_blocks: u64,
) -> Loaded {
    let mut assembly = Assembly::new(max_blocks);
    let key = keys.chunks(pointer.batch);
    for first in (0..pointer.chunks).step_by(AT_ONCE as usize) {
        let numbers = first..pointer.chunks.min(first.saturating_add(AT_ONCE));
        let commands = numbers.map(|chunk| Command::Chunk { key: key.clone(), chunk }).collect();
        for reply in store.run(commands).await? {
            let Reply::Chunk(Some(bytes)) = reply else { return Ok(Err(Remedy::NoSnapshot)) };
            let Ok(chunk) = kv::KvSnapshotChunk::decode(bytes) else { return Ok(Err(Remedy::Unreadable)) };
            let Ok(chunk) = messages::chunk(chunk, rank, naming) else { return Ok(Err(Remedy::Unreadable)) };
            match assembly.push(chunk) {
                Ok(None) => {}
                Ok(Some(snapshot)) => return Ok(Ok(snapshot)),
                Err(_) => return Ok(Err(Remedy::Doubt)),
            }
        }
    }
    Ok(Err(Remedy::NoSnapshot))
}
