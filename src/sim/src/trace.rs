//! Recorded workloads, read line by line: a trace is never in memory as a whole.
//!
//! | format | a line |
//! |---|---|
//! | Mooncake JSONL | `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}`: milliseconds, tokens, and a name for each 512 tokens of the prompt |
//! | CSV | `timestamp,input,output`: milliseconds or a date and time, tokens, tokens; no two prompts share anything |
//!
//! Requests are in the order of their timestamps, and the first one arrives at time 0.

mod csv;
mod mooncake;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use crate::request::{Piece, Prompt, SimRequest, Text};

/// Longest line: a prompt of two million tokens in Mooncake's form is a tenth of it.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Most tokens of a prompt or an answer: what a `u32` position holds.
const MAX_TOKENS: u64 = u32::MAX as u64 / 2;
/// Names of answers begin here, and texts of prompts stay below.
const ANSWERS: u64 = 1 << 63;
/// Names of prompts that share nothing.
const OWN_TEXTS: u64 = 1 << 62;

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read on.
    #[error("line {line}: cannot be read")]
    Read {
        /// Line, from 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// A line is too long to be one of a trace.
    #[error("line {line}: longer than {MAX_LINE_BYTES} bytes")]
    LineTooLong {
        /// Line, from 1.
        line: u64,
    },
    /// A line is not in the trace's format.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A request is before the one above it.
    #[error("line {line}: its timestamp is before that of the line above; sort the trace by timestamp")]
    OutOfOrder {
        /// Line, from 1.
        line: u64,
    },
    /// There is no request.
    #[error("there is no request in it")]
    Empty,
}

/// How a trace is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Mooncake JSONL.
    Mooncake,
    /// Comma-separated values.
    Csv,
}

impl Format {
    /// By the name of a file: `.csv` is CSV, everything else JSONL.
    pub fn of(path: &Path) -> Self {
        let is_csv = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
        if is_csv { Self::Csv } else { Self::Mooncake }
    }
}

/// What a line says.
struct Record {
    /// Milliseconds since some start.
    timestamp: f64,
    input: u64,
    output: u64,
    /// Texts of the prompt's start, [`mooncake::ID_TOKENS`] tokens each; what they do not name is the request's own.
    ids: Vec<u64>,
}

/// The requests of a trace, in order. After an error there is nothing more.
pub struct Trace<R> {
    reader: R,
    format: Format,
    line: u64,
    count: u64,
    first: Option<f64>,
    last: f64,
    ended: bool,
    text: Vec<u8>,
}

impl Trace<BufReader<File>> {
    /// The trace in a file, by the format of its name.
    ///
    /// # Errors
    /// [`TraceError::Open`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path)
            .map_err(|source| TraceError::Open { path: path.display().to_string(), source })?;
        Ok(Self::new(BufReader::new(file), Format::of(path)))
    }
}

impl<R: BufRead> Trace<R> {
    /// The trace in some bytes.
    pub fn new(reader: R, format: Format) -> Self {
        Self { reader, format, line: 0, count: 0, first: None, last: 0.0, ended: false, text: Vec::new() }
    }

    fn malformed(&self, problem: impl Into<String>) -> TraceError {
        TraceError::Malformed { line: self.line, problem: problem.into() }
    }

    /// The next line that is not empty.
    fn next_line(&mut self) -> Result<Option<String>, TraceError> {
        loop {
            self.text.clear();
            self.line += 1;
            let line = self.line;
            let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES + 1);
            let read = limited
                .read_until(b'\n', &mut self.text)
                .map_err(|source| TraceError::Read { line, source })?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > MAX_LINE_BYTES {
                return Err(TraceError::LineTooLong { line });
            }
            let text = str::from_utf8(&self.text).map_err(|_| self.malformed("it is not UTF-8"))?.trim();
            if !text.is_empty() {
                return Ok(Some(text.to_owned()));
            }
        }
    }

    fn try_next(&mut self) -> Result<Option<SimRequest>, TraceError> {
        loop {
            let Some(text) = self.next_line()? else {
                return if self.count == 0 { Err(TraceError::Empty) } else { Ok(None) };
            };
            let record = match self.format {
                Format::Mooncake => mooncake::record(&text).map(Some),
                Format::Csv => csv::record(&text, self.line == 1),
            };
            if let Some(record) = record.map_err(|problem| self.malformed(problem))? {
                return self.request(record).map(Some);
            }
        }
    }

    fn request(&mut self, record: Record) -> Result<SimRequest, TraceError> {
        let Record { timestamp, input, output, ids } = record;
        for (what, tokens, least) in [("input", input, 1), ("output", output, 0)] {
            if !(least..=MAX_TOKENS).contains(&tokens) {
                return Err(
                    self.malformed(format!("{tokens} {what} tokens; they must be {least} to {MAX_TOKENS}"))
                );
            }
        }
        let first = *self.first.get_or_insert(timestamp);
        if timestamp < self.last && self.count > 0 {
            return Err(TraceError::OutOfOrder { line: self.line });
        }
        self.last = timestamp;
        let at = Duration::try_from_secs_f64((timestamp - first) / 1e3)
            .map_err(|_| self.malformed(format!("timestamp {timestamp} is not a time in milliseconds")))?;
        self.count += 1;
        Ok(SimRequest {
            at,
            prompt: self.prompt(input, ids),
            answer: Text(ANSWERS | self.count),
            // A request that asks for nothing still gets the token that its prompt gives.
            output: (output as u32).max(1),
        })
    }

    fn prompt(&self, input: u64, ids: Vec<u64>) -> Prompt {
        let mut left = input;
        let mut pieces = Vec::with_capacity(ids.len() + 1);
        for id in ids {
            let tokens = left.min(mooncake::ID_TOKENS);
            if tokens > 0 {
                pieces.push(Piece { text: Text(id & (OWN_TEXTS - 1)), tokens: tokens as u32 });
            }
            left -= tokens;
        }
        if left > 0 {
            pieces.push(Piece { text: Text(OWN_TEXTS | self.count), tokens: left as u32 });
        }
        Prompt(pieces)
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<SimRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.try_next().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
