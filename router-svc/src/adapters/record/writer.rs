//! Writes inputs and answers on a thread of its own. A decision never waits for it: what its queue has no room for is not recorded, and counted.

use std::fs::{File, create_dir_all, read_dir, remove_file};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use prost::Message;

use super::format::recorded;
use super::{FILES, answers_file, inputs_file};
use crate::domain::explain::{DecisionNumber, Outcome};
use crate::domain::policy::Inputs;
use crate::metrics::Metrics;

/// Decisions that wait to be written.
const QUEUE: usize = 256;
/// What is written comes into the files at the latest after so long.
const FLUSH: Duration = Duration::from_secs(1);

/// What is recorded of a decision.
pub struct Recorded {
    /// Its number.
    pub number: DecisionNumber,
    /// What it was made from.
    pub inputs: Inputs,
    /// What came of it.
    pub outcome: Outcome,
}

/// Takes decisions. Dropping it waits until what it has taken is written.
pub struct Recorder {
    queue: Option<SyncSender<Recorded>>,
    thread: Option<JoinHandle<()>>,
    metrics: Metrics,
}

impl Recorder {
    /// Begins a new file in `dir`, which is made if need be; all files together take at most `max_bytes`.
    pub fn start(dir: &Path, max_bytes: u64, metrics: Metrics) -> io::Result<Self> {
        let mut files = Files::begin(dir, max_bytes / FILES)?;
        let (queue, decisions) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new().name("recorder".into()).spawn(move || {
            if let Err(error) = files.write_all(&decisions) {
                tracing::error!(%error, "decisions are no longer recorded");
            }
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread), metrics })
    }

    /// Takes a decision, if there is room.
    pub fn record(&self, decision: Recorded) {
        let taken = self.queue.as_ref().is_some_and(|queue| queue.try_send(decision).is_ok());
        if taken {
            self.metrics.recorded.inc()
        } else {
            self.metrics.unrecorded.inc()
        };
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It has said what went wrong itself.
            _ = thread.join();
        }
    }
}

struct Files {
    dir: PathBuf,
    /// Most bytes of a pair of files.
    most: u64,
    number: u64,
    bytes: u64,
    inputs: BufWriter<File>,
    answers: BufWriter<File>,
}

impl Files {
    fn begin(dir: &Path, most: u64) -> io::Result<Self> {
        create_dir_all(dir)?;
        let mut last = 0;
        for entry in read_dir(dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("decisions-")?.strip_suffix(".rec"));
            last = last.max(number.and_then(|number| number.parse().ok()).unwrap_or(0));
        }
        let number = last + 1;
        let (inputs, answers) = pair(dir, number)?;
        let files = Self { dir: dir.to_owned(), most, number, bytes: 0, inputs, answers };
        files.drop_oldest()?;
        Ok(files)
    }

    fn write_all(&mut self, decisions: &Receiver<Recorded>) -> io::Result<()> {
        loop {
            match decisions.recv_timeout(FLUSH) {
                Ok(decision) => self.write(&decision)?,
                Err(RecvTimeoutError::Timeout) => self.flush()?,
                Err(RecvTimeoutError::Disconnected) => return self.flush(),
            }
        }
    }

    fn write(&mut self, decision: &Recorded) -> io::Result<()> {
        let inputs = recorded(decision.number, &decision.inputs).encode_length_delimited_to_vec();
        let answer = answer(decision);
        let bytes = (inputs.len() + answer.len()) as u64;
        if bytes > self.most {
            return Ok(());
        }
        if self.bytes + bytes > self.most {
            self.flush()?;
            self.number += 1;
            self.bytes = 0;
            (self.inputs, self.answers) = pair(&self.dir, self.number)?;
            self.drop_oldest()?;
        }
        self.bytes += bytes;
        self.inputs.write_all(&inputs)?;
        self.answers.write_all(answer.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inputs.flush()?;
        self.answers.flush()
    }

    /// Removes every file but the latest few.
    fn drop_oldest(&self) -> io::Result<()> {
        for entry in read_dir(&self.dir)? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix("decisions-"));
            let number: Option<u64> = stem.and_then(|number| number.parse().ok());
            if number.is_some_and(|number| number + FILES <= self.number) {
                remove_file(&path)?;
            }
        }
        Ok(())
    }
}

fn pair(dir: &Path, number: u64) -> io::Result<(BufWriter<File>, BufWriter<File>)> {
    let inputs = inputs_file(dir, number);
    Ok((BufWriter::new(File::create(&inputs)?), BufWriter::new(File::create(answers_file(&inputs))?)))
}

/// Number, decode worker, prefill workers.
fn answer(decision: &Recorded) -> String {
    format!("{} {}\n", decision.number.0, decision.outcome)
}
