//! Tokenizer and template of a model from files: those that are configured, or those that the engine itself runs, where this machine has them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::domain::openai::facts::{self, Template};
use crate::engine::llama::{Artifacts, LoadError};

/// Longest file that is read whole, in bytes; the largest tokenizers have about 35 MB.
const MAX_FILE: u64 = 128 << 20;

/// What files say of a model.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelFiles {
    /// `tokenizer.json`.
    pub(super) tokenizer: Vec<u8>,
    /// What is known of its template.
    pub(super) template: Template,
    /// End tokens by id.
    pub(super) end_tokens: Vec<u32>,
    /// Longest sequence in tokens.
    pub(super) context_length: Option<usize>,
}

/// A file that is no help.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is larger than any tokenizer.
    #[error("{} has more than {MAX_FILE} bytes: is it a tokenizer?", .0.display())]
    TooLarge(PathBuf),
    /// It is not what its name says.
    #[error("{} is not usable: {problem}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}

/// Reads the model's files at `path`: a GGUF file, a `tokenizer.json`, or a folder that has one.
pub(super) fn model(path: &Path) -> Result<ModelFiles, FileError> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return gguf(path);
    }
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    let mut files = ModelFiles { tokenizer: read(&file)?, ..ModelFiles::default() };
    let beside = |name: &str| folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
    if let Some(config) = beside("tokenizer_config.json") {
        files.template = template_of(&config)?;
    }
    if let Some(jinja) = beside("chat_template.jinja") {
        files.template.chat_template = Some(text(&jinja)?);
    }
    if let Some(generation) = beside("generation_config.json") {
        files.end_tokens = facts::end_tokens(&read(&generation)?);
    }
    Ok(files)
}

/// Reads the template at `path`: Jinja, or a `tokenizer_config.json`.
pub(super) fn template(path: &Path) -> Result<Template, FileError> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return template_of(path);
    }
    Ok(Template { chat_template: Some(text(path)?), ..Template::default() })
}

/// Where this machine has the files of a model that is named by a folder, or by its name at Hugging Face's hub.
pub(super) fn local(root: &str) -> Option<PathBuf> {
    let path = Path::new(root);
    if path.is_absolute() {
        let there = path.is_file() || path.join("tokenizer.json").is_file();
        return there.then(|| path.to_owned());
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = || variable("HF_HOME").or_else(|| Some(variable("HOME")?.join(".cache/huggingface")));
    let hub = variable("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub")))?;
    let snapshots = hub.join(format!("models--{}", root.replace('/', "--"))).join("snapshots");
    let with_tokenizer = fs::read_dir(snapshots).ok()?.flatten().map(|entry| entry.path());
    with_tokenizer.filter(|path| path.join("tokenizer.json").is_file()).max()
}

fn gguf(path: &Path) -> Result<ModelFiles, FileError> {
    let artifacts = Artifacts::read(path).map_err(|error| match error {
        LoadError::File(source) => FileError::Unreadable { path: path.to_owned(), source },
        other => FileError::Malformed {
            path: path.to_owned(),
            problem: format!("{other}; give the model's tokenizer.json with openai.tokenizer"),
        },
    })?;
    let template = serde_json::from_slice(&artifacts.template).map_err(malformed(path))?;
    Ok(ModelFiles {
        tokenizer: artifacts.tokenizer,
        template,
        end_tokens: artifacts.end_tokens,
        context_length: artifacts.context_length,
    })
}

fn template_of(path: &Path) -> Result<Template, FileError> {
    Template::of_tokenizer_config(&read(path)?).map_err(malformed(path))
}

fn malformed(path: &Path) -> impl FnOnce(serde_json::Error) -> FileError {
    let path = path.to_owned();
    |error| FileError::Malformed { path, problem: error.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    if fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE {
        return Err(FileError::TooLarge(path.to_owned()));
    }
    fs::read(path).map_err(unreadable)
}

fn text(path: &Path) -> Result<String, FileError> {
    String::from_utf8(read(path)?)
        .map_err(|error| FileError::Malformed { path: path.to_owned(), problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_of_hugging_face_is_read_whole_and_a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = model(dir.path()).unwrap_err().to_string();
        assert!(missing.contains("tokenizer.json"), "{missing}");
        for (name, text) in [
            ("tokenizer.json", "{}"),
            ("tokenizer_config.json", r#"{"chat_template":"old","eos_token":"</s>"}"#),
            ("chat_template.jinja", "new"),
            ("generation_config.json", r#"{"eos_token_id":[2,7]}"#),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        for path in [dir.path().to_owned(), dir.path().join("tokenizer.json")] {
            let files = model(&path).unwrap();
            assert_eq!((files.tokenizer.as_slice(), files.end_tokens.as_slice()), (&b"{}"[..], &[2, 7][..]));
            assert_eq!(files.template.chat_template.as_deref(), Some("new"));
            assert_eq!(files.template.eos_token.as_deref(), Some("</s>"));
        }
        let jinja = template(&dir.path().join("chat_template.jinja")).unwrap();
        assert_eq!(jinja.chat_template.as_deref(), Some("new"));
    }

    #[test]
    fn a_gguf_file_has_tokenizer_template_and_context() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        armature_tiny_gguf::write(&path, &armature_tiny_gguf::Spec::default()).unwrap();
        let files = model(&path).unwrap();
        assert!(files.tokenizer.starts_with(b"{") && files.context_length.is_some());
        assert_eq!(local(path.to_str().unwrap()), Some(path));
        assert_eq!(local("/nowhere/at/all"), None);
    }
}
