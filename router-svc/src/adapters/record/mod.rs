//! Inputs of decisions in files, so that they can be decided again elsewhere and later.
//!
//! `decisions-N.rec` holds [`format`] messages, each after its length as a varint: what each decision was made from, and nothing of what came of it.
//! `decisions-N.answers` holds that, a line per decision: its number, the decode worker, the prefill workers. When both together have grown to a quarter of
//! the bound the next N begins, and the oldest goes.

pub mod format;
pub mod read;
#[cfg(test)]
mod tests;
pub mod writer;

use std::path::{Path, PathBuf};

/// Files of each kind that are kept.
const FILES: u64 = 4;

/// Where the `n`th file of inputs is.
fn inputs_file(dir: &Path, n: u64) -> PathBuf {
    dir.join(format!("decisions-{n:08}.rec"))
}

/// Where the answers to a file of inputs are.
pub fn answers_file(inputs: &Path) -> PathBuf {
    inputs.with_extension("answers")
}
