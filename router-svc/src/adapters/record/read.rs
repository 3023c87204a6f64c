//! Reads what was recorded.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use prost::{DecodeError, Message};

use super::answers_file;
use super::format::{Decision, Unreadable};
use crate::domain::explain::DecisionNumber;
use crate::domain::policy::Inputs;

/// A file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not at all.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no recording.
    #[error("decision {place} of the file is broken: {error}")]
    Broken {
        /// Which, from 1.
        place: usize,
        /// How.
        error: DecodeError,
    },
    /// It is of another version.
    #[error("decision {place} of the file cannot be made again: {error}")]
    Unreadable {
        /// Which, from 1.
        place: usize,
        /// Why.
        error: Unreadable,
    },
}

/// The decisions of a file, in order. The last one is left out if it was being written when the router ended.
pub fn decisions(file: &Path) -> Result<Vec<(DecisionNumber, Inputs)>, ReadError> {
    let mut rest = Bytes::from(std::fs::read(file)?);
    let mut decisions = Vec::new();
    while !rest.is_empty() {
        let place = decisions.len() + 1;
        let length = prost::decode_length_delimiter(&mut rest.clone());
        let whole = |length: usize| length + prost::length_delimiter_len(length) <= rest.len();
        match length {
            Ok(length) if whole(length) => {}
            Ok(_) => break,
            Err(_) if rest.len() < 10 => break,
            Err(error) => return Err(ReadError::Broken { place, error }),
        }
        let decision = Decision::decode_length_delimited(&mut rest);
        let decision = decision.map_err(|error| ReadError::Broken { place, error })?;
        decisions.push(decision.read().map_err(|error| ReadError::Unreadable { place, error })?);
    }
    Ok(decisions)
}

/// The answers that were given to the decisions of a file, by number; none where they were not kept.
pub fn answers(file: &Path) -> io::Result<HashMap<u64, String>> {
    let text = match std::fs::read_to_string(answers_file(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        text => text?,
    };
    let answer = |line: &str| {
        let (number, outcome) = line.split_once(' ')?;
        Some((number.parse().ok()?, outcome.to_owned()))
    };
    Ok(text.lines().filter_map(answer).collect())
}
