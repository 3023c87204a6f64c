//! Files mapped for reading.
//!
//! This is one of the files where `unsafe` is allowed: a mapping is sound only while nobody
//! truncates or rewrites the file under it. Model files are inputs that an operator does not edit
//! in place, and the weight cache is written under another name and renamed when complete.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// Maps a whole file.
///
/// # Errors
/// What opening or mapping it answers.
pub(super) fn map(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: see the module's comment.
    unsafe { Mmap::map(&file) }
}
