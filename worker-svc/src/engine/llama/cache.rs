//! Quantised weights in a file, so that a model is quantised once per machine and its pages are
//! shared by all processes that map them.
//!
//! One file per model digest and format version. It starts with a page of header: magic, version
//! u32, payload length u64, model digest, BLAKE3-256 of the payload. It is written under another
//! name and renamed when complete; one that does not verify is rebuilt.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapMut};

use super::gguf::{Gguf, GgufError};
use super::shape::Shape;
use super::weights::{self, Weights};
use super::{LoadError, mapping};

/// Changes whenever the layout of the payload or its quantisation does.
const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"ARMQ8\0\r\n";
/// Bytes before the payload: a page, so that the payload keeps a page's alignment.
const HEADER: usize = 4096;
/// Weights are at most this many times their file (4-bit blocks become 8-bit ones: 34 for 18 bytes).
const MAX_GROWTH: usize = 4;
/// Padding that a small model may add to that.
const SLACK: usize = 1 << 20;

/// Digest of a model's file.
pub type ModelDigest = [u8; 32];

/// The weights of a file: from the cache in `dir` if there is a good one, otherwise quantised and,
/// where `dir` is given, cached. A cache that cannot be written costs a warning and the sharing.
///
/// # Errors
/// The file is not a model that can be run, or there is no memory.
pub(super) fn load(
    dir: Option<&Path>,
    digest: &ModelDigest,
    file: &Gguf<'_>,
    shape: &Shape,
    file_len: usize,
) -> Result<Weights, LoadError> {
    let len = Weights::len(shape);
    let limit = file_len.saturating_mul(MAX_GROWTH) + SLACK;
    if len > limit {
        let what = "the size of the weights that the metadata imply".to_owned();
        return Err(GgufError::Absurd { what, value: len as u64, limit: limit as u64 }.into());
    }
    let path = dir.map(|dir| path(dir, digest));
    if let Some(found) = path.as_deref().and_then(|path| open(path, digest, len)) {
        return Ok(Weights::new(shape, found, HEADER));
    }
    let mut bytes = MmapMut::map_anon(HEADER + len).map_err(LoadError::Memory)?;
    weights::quantise(file, shape, &mut bytes[HEADER..])?;
    if let Some(path) = path {
        let (header, payload) = bytes.split_at_mut(HEADER);
        header.copy_from_slice(&header_of(digest, payload));
        match write(&path, &bytes).and_then(|()| mapping::map(&path)) {
            Ok(map) if map.len() == bytes.len() => return Ok(Weights::new(shape, map, HEADER)),
            Ok(_) => tracing::warn!(path = %path.display(), "weight cache changed while it was written"),
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot write the weight cache"),
        }
    }
    Ok(Weights::new(shape, bytes.make_read_only().map_err(LoadError::Memory)?, HEADER))
}

fn path(dir: &Path, digest: &ModelDigest) -> PathBuf {
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("{hex}.q8_0-v{FORMAT}"))
}

fn header_of(digest: &ModelDigest, payload: &[u8]) -> [u8; HEADER] {
    let payload_digest = blake3::hash(payload);
    let fields: [&[u8]; 5] = [
        MAGIC,
        &FORMAT.to_le_bytes(),
        &(payload.len() as u64).to_le_bytes(),
        digest,
        payload_digest.as_bytes(),
    ];
    let mut header = [0; HEADER];
    let mut at = 0;
    for field in fields {
        header[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
    header
}

/// The cached file, if it is there and is what it should be.
fn open(path: &Path, digest: &ModelDigest, len: usize) -> Option<Mmap> {
    let map = match mapping::map(path) {
        Ok(map) => map,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the weight cache");
            return None;
        }
    };
    let sound = map.len() == HEADER + len && map[..HEADER] == header_of(digest, &map[HEADER..]);
    if !sound {
        tracing::warn!(path = %path.display(), "weight cache is damaged and will be rebuilt");
    }
    sound.then_some(map)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}
