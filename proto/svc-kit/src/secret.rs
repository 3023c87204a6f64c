//! A value that cannot be printed.

use std::fmt;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is shown in place of a secret.
pub const REDACTED: &str = "<redacted>";

/// A token or password. Printing, logging and serializing it show [`REDACTED`]; its memory is
/// cleared when it goes.
///
/// In configuration it is the text itself, `token = "..."`, or the file that holds it,
/// `token = { file = "/run/secrets/token" }` (environment: `...__TOKEN__FILE`). One line end after
/// the text in a file is not part of it. An empty secret is refused: it would pass for "none".
#[derive(Clone)]
pub struct Secret(SecretString);

/// Why a secret could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret file {}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// No text.
    #[error("a secret must not be empty")]
    Empty,
}

impl Secret {
    /// Takes the text itself.
    pub fn from_value(text: impl Into<String>) -> Result<Self, SecretError> {
        let text = text.into();
        if text.is_empty() { Err(SecretError::Empty) } else { Ok(Self(text.into())) }
    }

    /// Reads the text from a file.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SecretError::Unreadable { path: path.to_owned(), source })?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Self::from_value(line.strip_suffix('\r').unwrap_or(line))
    }

    /// The text, for the one place that needs it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// Compares in time that depends on the length of `candidate` only, so that an answer's delay
    /// tells nothing about how much of a guess was right.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let secret = self.expose().as_bytes();
        let mut difference = secret.len() ^ candidate.len();
        for (index, byte) in candidate.iter().enumerate() {
            difference |= usize::from(byte ^ secret[index % secret.len()]);
        }
        std::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.expose().as_bytes())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrFile)
    }
}

struct TextOrFile;

impl<'de> Visitor<'de> for TextOrFile {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret as quoted text, or { file = \"path\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
        Secret::from_value(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Secret, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct InFile {
            file: PathBuf,
        }
        let InFile { file } = InFile::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Secret::from_file(&file).map_err(|error| match error {
            SecretError::Unreadable { ref source, .. } => de::Error::custom(format!("{error}: {source}")),
            SecretError::Empty => de::Error::custom(format!("{}: {error}", file.display())),
        })
    }

    // A wrong type must not echo the value in the error, as serde's own messages would.
    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
        Err(E::custom("a secret of digits only must be quoted"))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::custom("a secret of digits only must be quoted"))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::custom("a secret of digits only must be quoted"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    proptest! {
        #[test]
        fn matches_only_itself(text in "[ -~]{1,40}", other in "[ -~]{0,40}") {
            let secret = Secret::from_value(text.clone()).unwrap();
            prop_assert!(secret.matches(text.as_bytes()));
            prop_assert_eq!(secret.matches(other.as_bytes()), text == other);
        }

        #[test]
        fn is_never_printed(text in "[A-Za-z0-9]{12,40}") {
            let secret = Secret::from_value(text.clone()).unwrap();
            let shown = format!("{secret} {secret:?} {}", serde_json::to_string(&secret).unwrap());
            prop_assert!(!shown.contains(&text));
        }
    }

    #[test]
    fn repeated_text_is_another_secret() {
        assert!(!Secret::from_value("ab").unwrap().matches(b"abab"));
        assert!(!Secret::from_value("abab").unwrap().matches(b"ab"));
    }

    #[test]
    fn from_file_drops_one_line_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "s3cret ").unwrap();
        let json = serde_json::json!({ "file": file.path() });
        let secret: Secret = serde_json::from_value(json).unwrap();
        assert_eq!(secret.expose(), "s3cret ");
    }

    #[test]
    fn wrong_types_do_not_echo() {
        let error = serde_json::from_str::<Secret>("987654321").unwrap_err().to_string();
        assert!(!error.contains("987654321"), "{error}");
        assert!(serde_json::from_str::<Secret>("\"\"").is_err());
    }
}
