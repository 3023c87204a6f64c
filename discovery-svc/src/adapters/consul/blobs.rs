//! Cards and artifacts as keys, in chunks, because a value in Consul has at most 512 KiB.
//!
//! A blob's size is written first and marked as whole last, so that what a replica left half written is counted and makes room. Chunks are
//! small, because Consul's servers copy each as one message.

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::client::{CallError, Client};
use super::kv;
use super::names::Names;
use crate::domain::blobs::NoRoom;
use crate::domain::instance::Digest;

/// Bytes of one value.
const CHUNK_BYTES: usize = 256 * 1024;

/// Which blobs are bounded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    Card,
    Artifact,
}

impl Kind {
    /// Its name in keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Artifact => "artifact",
        }
    }
}

/// Why a blob was not kept.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Everything that fills the room is in use.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Consul.
    #[error(transparent)]
    Call(#[from] CallError),
}

#[derive(Serialize, Deserialize)]
struct Size {
    bytes: usize,
    whole: bool,
}

struct Kept {
    digest: Digest,
    size: Size,
    index: u64,
}

/// Keeps a blob; what is not `in_use` makes room, the one written first goes first.
pub async fn put(
    client: &Client,
    names: &Names,
    (kind, digest, content): (Kind, Digest, Bytes),
    limit: usize,
    in_use: &BTreeSet<Digest>,
) -> Result<(), BlobError> {
    let mut kept = list(client, names, kind).await?;
    let index = match kept.iter().position(|it| it.digest == digest) {
        Some(known) if kept[known].size.whole => return Ok(()),
        Some(half) => kept.swap_remove(half).index,
        None => 0,
    };
    let size = content.len();
    let bytes = |kept: &[Kept]| kept.iter().map(|it| it.size.bytes).sum::<usize>();
    let used: usize = kept.iter().filter(|it| in_use.contains(&it.digest)).map(|it| it.size.bytes).sum();
    if bytes(&kept) + size > limit && used + size > limit {
        return Err(NoRoom { size, used, limit }.into());
    }
    kept.sort_by_key(|it| std::cmp::Reverse(it.index));
    while bytes(&kept) + size > limit {
        let Some(oldest) = kept.iter().rposition(|it| !in_use.contains(&it.digest)) else { break };
        let Kept { digest, index, .. } = kept.remove(oldest);
        if kv::delete(client, &names.blob(kind, &digest), index).await? {
            kv::delete_all(client, &names.chunks(kind, &digest)).await?;
        }
    }
    let key = names.blob(kind, &digest);
    let written = |whole| Bytes::from(serde_json::to_vec(&Size { bytes: size, whole }).unwrap_or_default());
    kv::put(client, &key, written(false), index).await?;
    for (turn, start) in (0..size).step_by(CHUNK_BYTES).enumerate() {
        let chunk = content.slice(start..size.min(start + CHUNK_BYTES));
        kv::set(client, &names.chunk(kind, &digest, turn), chunk).await?;
    }
    // Whoever wrote the same blob meanwhile wrote the same bytes.
    kv::set(client, &key, written(true)).await?;
    Ok(())
}

/// The bytes of a blob, verified; none when it is not there or not whole.
pub async fn get(
    client: &Client,
    names: &Names,
    kind: Kind,
    digest: Digest,
) -> Result<Option<Bytes>, CallError> {
    let Some(pair) = kv::get(client, &names.blob(kind, &digest)).await? else { return Ok(None) };
    let Some(size) = size(&pair.value).filter(|size| size.whole) else { return Ok(None) };
    let mut content = BytesMut::new();
    for turn in 0..size.bytes.div_ceil(CHUNK_BYTES) {
        let Some(chunk) = kv::get(client, &names.chunk(kind, &digest, turn)).await? else { return Ok(None) };
        content.extend_from_slice(&chunk.value);
    }
    if Digest::of(&content) != digest {
        tracing::error!(kind = kind.as_str(), %digest, "what Consul keeps does not have this digest");
        return Ok(None);
    }
    Ok(Some(content.freeze()))
}

/// Every blob that is there as a whole.
pub async fn present(client: &Client, names: &Names, kind: Kind) -> Result<BTreeSet<Digest>, CallError> {
    let kept = list(client, names, kind).await?;
    Ok(kept.into_iter().filter(|it| it.size.whole).map(|it| it.digest).collect())
}

async fn list(client: &Client, names: &Names, kind: Kind) -> Result<Vec<Kept>, CallError> {
    let kept = |pair: kv::Pair| {
        let digest = pair.key.rsplit('/').next()?.parse().ok()?;
        Some(Kept { digest, size: size(&pair.value)?, index: pair.index })
    };
    let pairs = kv::list(client, &names.blob_index(kind)).await?;
    Ok(pairs.into_iter().filter_map(kept).collect())
}

fn size(value: &[u8]) -> Option<Size> {
    serde_json::from_slice(value).ok()
}
