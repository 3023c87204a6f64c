//! What a wrong configuration is told.

use std::path::PathBuf;

use figment::Figment;
use figment::error::Kind;

use crate::exit::Exit;

/// Names closer than this (Jaro-Winkler, 0 to 1) are worth a "did you mean".
const SIMILAR: f64 = 0.7;

/// Why a configuration was refused. A process that sees one ends with [`ConfigError::exit`].
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file of `--config` cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An argument of `--set` that assigns nothing.
    #[error("`--set {0}`: expected KEY=VALUE")]
    Assignment(String),
    /// A key that does not exist.
    #[error("unknown configuration key `{key}` ({origin}){}", suggestion(nearest))]
    UnknownKey {
        /// The dotted key.
        key: String,
        /// The dotted key that was probably meant.
        nearest: Option<String>,
        /// The file, variable or flag that named it.
        origin: String,
    },
    /// A value that does not fit its key, or a key that is missing.
    #[error("configuration key `{key}` ({origin}): {problem}")]
    Value {
        /// The dotted key; empty for the whole.
        key: String,
        /// What is wrong.
        problem: String,
        /// The file, variable or flag it came from.
        origin: String,
    },
    /// A value that is well-formed and makes no sense; for the service's own validation.
    #[error("configuration key `{key}`: {problem}")]
    Invalid {
        /// The dotted key.
        key: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The configuration cannot be written as TOML.
    #[error("cannot print the configuration: {0}")]
    Print(String),
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|key| format!(": did you mean `{key}`?")).unwrap_or_default()
}

impl ConfigError {
    /// A value the service's own validation refuses.
    pub fn invalid(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { key: key.into(), problem: problem.into() }
    }

    /// The exit code of a process with this problem.
    pub fn exit(&self) -> Exit {
        Exit::Configuration
    }

    pub(super) fn from_figment(error: figment::Error) -> Self {
        Self::explain(error, &Figment::new())
    }

    pub(super) fn explain(error: figment::Error, figment: &Figment) -> Self {
        let mut path = error.path.as_slice();
        if let (Kind::UnknownField(name, _), [table @ .., last]) = (&error.kind, path)
            && name == last
        {
            path = table;
        }
        let path = path.join(".");
        let within = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let origin = |key: &str| {
            let metadata = error.metadata.as_ref().or_else(|| figment.find_metadata(key));
            metadata.map_or_else(|| "the defaults".to_owned(), describe)
        };
        match &error.kind {
            Kind::UnknownField(name, expected) => {
                let key = within(name);
                let nearest = nearest(name, expected).map(within);
                // The place of the table would be the place of its last key, not of this one.
                let origin = figment.find_metadata(&key).map_or_else(|| origin(&key), describe);
                Self::UnknownKey { nearest, origin, key }
            }
            Kind::UnknownVariant(name, expected) => {
                let meant = nearest(name, expected).map(|it| format!("; did you mean `{it}`?"));
                let problem =
                    format!("`{name}` is not one of {}{}", expected.join(", "), meant.unwrap_or_default());
                Self::Value { origin: origin(&path), problem, key: path }
            }
            kind => Self::Value { origin: origin(&path), problem: kind.to_string(), key: path },
        }
    }
}

fn describe(metadata: &figment::Metadata) -> String {
    match metadata.source.as_ref().and_then(figment::Source::file_path) {
        Some(path) => format!("file {}", path.display()),
        None => metadata.name.to_string(),
    }
}

fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    candidates
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}
