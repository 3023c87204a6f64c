//! The last good view on disk, so that a consumer that restarts while discovery is away still
//! knows whom to ask.
//!
//! The file is replaced as a whole (written beside, flushed, renamed), so a reader finds the old
//! or the new one. It begins with [`MAGIC`]; the rest is a `ViewSnapshot`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use armature_contracts::discovery::v1::ViewSnapshot;
use prost::Message as _;
use tempfile::NamedTempFile;

use super::instance::Instance;

/// First bytes of the file, with the version of its form.
const MAGIC: &[u8; 8] = b"ARMVIEW1";
/// A larger file is not ours.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Why the file cannot be used; a consumer goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum LastGoodError {
    /// The system says so.
    #[error("last good view {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else, or of another version.
    #[error("{} is not a view", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
}

/// Reads the file; a missing one is an empty view.
pub(super) fn load(path: &Path) -> Result<Vec<Instance>, LastGoodError> {
    let foreign = || LastGoodError::Foreign { path: path.to_owned() };
    let bytes =
        match fs::metadata(path).and_then(|it| (it.len() <= MAX_BYTES).then(|| fs::read(path)).transpose()) {
            Ok(bytes) => bytes.ok_or_else(foreign)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(LastGoodError::Io { path: path.to_owned(), source }),
        };
    let snapshot = bytes.strip_prefix(MAGIC).and_then(|rest| ViewSnapshot::decode(rest).ok());
    Ok(snapshot.ok_or_else(foreign)?.instances.into_iter().map(Instance::from).collect())
}

/// Replaces the file.
pub(super) fn store(path: &Path, instances: &[Arc<Instance>]) -> Result<(), LastGoodError> {
    let instances = instances.iter().map(|instance| (&**instance).into()).collect();
    let snapshot = ViewSnapshot { instances, ..ViewSnapshot::default() };
    let write = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // A name of its own: consumers on one volume may write at the same time.
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&snapshot.encode_to_vec())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map(drop).map_err(|source| LastGoodError::Io { path: path.to_owned(), source })
}
