//! What a worker writes next into the store beside it, given what it has written and how that went.
//!
//! One write is in flight at a time. Batches are appended in order under their own numbers; a snapshot at batch n lets readers start there, and
//! bounds the batches before it. After anything that leaves a write in doubt the store is looked at first:
//!
//! ```text
//! UNSURE --look--> the last entry is the acknowledged one, and our snapshot is there --> STEADY
//!                  the entry in flight has come through: compare its content      --> STEADY
//!                  anything else                                                   --> SNAPSHOT --chunks, pointer, tidy--> STEADY
//! ```
//!
//! The pointer is written after the last chunk, and batches are dropped up to the *previous* snapshot only: a reader that has just read a pointer
//! finds its chunks and every batch behind them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::time::Time;

/// Everything written lives this long unless renewed: what a dead worker leaves goes by itself.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(15 * 60);
/// How often it is renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(30);
/// A snapshot is written when the batches after the last one weigh as much as the set, and at least this many bytes.
const LEAST_TAIL_BYTES: u64 = 64 * 1024;
/// Weight of a batch without its changes: an entry's keys, numbers and names.
const BATCH_BYTES: u64 = 100;
/// Weight of a change.
const CHANGE_BYTES: u64 = 9;
/// Weight of a block in a snapshot.
const BLOCK_BYTES: u64 = 8;

/// What the event log can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRange {
    /// Oldest batch it still has.
    pub first: u64,
    /// Last batch; 0 before the first.
    pub last: u64,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing until the log has more.
    Wait,
    /// Read the newest entry and the pointers.
    Look,
    /// Read entry `number` and compare its content with that of this batch.
    Compare {
        /// Of the batch.
        number: u64,
    },
    /// Append batch `number` and name the rank on the channel; renew the life of what is there, if asked.
    Append {
        /// Of the batch.
        number: u64,
        /// Renew the stream, the pointers, and these snapshots: the current one first, which must be there. Of none, only the stream.
        renew: Option<Vec<u64>>,
    },
    /// Take a snapshot of the log, at batch 1 or later.
    TakeSnapshot,
    /// Write a chunk of it.
    Chunk {
        /// Its batch.
        at: u64,
        /// Number of the chunk.
        chunk: u32,
    },
    /// Write its pointer.
    Point {
        /// Its batch.
        at: u64,
    },
    /// Drop snapshots that no pointer leads to any more, then batches below `below`.
    Tidy {
        /// Snapshots to drop.
        drop: Vec<u64>,
        /// Oldest batch to keep; none: all.
        below: Option<u64>,
    },
    /// Drop everything of this rank: what is there cannot be this incarnation's.
    Clear,
}

/// How a step went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// What was found.
    Looked {
        /// Number of the newest entry.
        last: Option<u64>,
        /// Snapshots that pointers lead to, the newest first.
        snapshots: Vec<u64>,
    },
    /// Whether the entry is there and has the content of the batch; none when the log no longer has the batch.
    Compared(Option<bool>),
    /// The batch is appended.
    Appended {
        /// Changes in it.
        changes: u64,
        /// Whether everything to be renewed was there.
        renewed: bool,
    },
    /// The store has this entry or a later one.
    NotGreater,
    /// The log gave a snapshot.
    Taken {
        /// Its batch.
        at: u64,
        /// Its chunks, at least one.
        chunks: u32,
        /// Blocks in it.
        blocks: u64,
    },
    /// The step is done.
    Done,
    /// The store has refused it: no effect.
    Refused,
    /// No answer: perhaps done, perhaps done later, perhaps never.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Something is in doubt.
    Unsure,
    /// Entry `number` is there and may be this batch.
    Comparing {
        number: u64,
    },
    Steady,
    /// A snapshot is needed.
    Snapshot,
    Chunks {
        at: u64,
        next: u32,
        chunks: u32,
        blocks: u64,
    },
    Pointing {
        at: u64,
        blocks: u64,
    },
    Tidying {
        below: Option<u64>,
    },
    Clearing,
}

/// The publisher of one rank.
#[derive(Debug, Clone)]
pub struct Publisher {
    phase: Phase,
    /// Last batch known to be in the store, or in a snapshot there.
    acknowledged: u64,
    /// The snapshot behind which every batch up to the acknowledged one was written. None once the store has lost something: batches may
    /// follow a hole then, and only another snapshot mends that, however well the newest entry looks. An older pointer does not count,
    /// for a copy that takes over may be from before the mending.
    whole_from: Option<u64>,
    /// Snapshots that readers may be at: the newest two with a pointer, the newest first.
    snapshots: Vec<u64>,
    /// Snapshots that no reader is sent to: to be dropped. Bounded by those that fail between two that succeed; see `abandon`.
    garbage: BTreeSet<u64>,
    blocks: u64,
    tail_bytes: u64,
    /// None: at once. A stream that has just come to be lives for ever otherwise.
    renewed_at: Option<Time>,
}

/// Abandoned snapshots remembered; older ones expire by themselves.
const MAX_GARBAGE: usize = 8;

impl Default for Publisher {
    fn default() -> Self {
        Self::new()
    }
}

impl Publisher {
    /// Of an incarnation that has written nothing.
    pub fn new() -> Self {
        Self {
            phase: Phase::Unsure,
            acknowledged: 0,
            whole_from: None,
            snapshots: Vec::new(),
            garbage: BTreeSet::new(),
            blocks: 0,
            tail_bytes: 0,
            renewed_at: None,
        }
    }

    /// Last batch that a reader of the store can know.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether the store is known to hold everything up to the acknowledged batch.
    pub fn is_steady(&self) -> bool {
        matches!(self.phase, Phase::Steady | Phase::Tidying { .. })
    }

    /// What to do now.
    pub fn step(&self, log: LogRange, now: Time) -> Step {
        match self.phase {
            Phase::Unsure => Step::Look,
            Phase::Comparing { number } => Step::Compare { number },
            Phase::Snapshot => Step::TakeSnapshot,
            // Taking it has cut batches: they are appended first, or who follows the stream would meet a hole.
            Phase::Chunks { at, .. } if self.acknowledged < at && self.acknowledged + 1 >= log.first => {
                Step::Append { number: self.acknowledged + 1, renew: Some(Vec::new()) }
            }
            Phase::Chunks { at, next, .. } => Step::Chunk { at, chunk: next },
            Phase::Pointing { at, .. } => Step::Point { at },
            Phase::Tidying { below } => Step::Tidy { drop: self.garbage.iter().copied().collect(), below },
            Phase::Clearing => Step::Clear,
            Phase::Steady if log.last <= self.acknowledged => Step::Wait,
            // Too far behind, or a snapshot is due.
            Phase::Steady if self.acknowledged + 1 < log.first || self.snapshot_due() => Step::TakeSnapshot,
            Phase::Steady => {
                let due = self.renewed_at.is_none_or(|at| now.since(at) >= RENEW_EVERY);
                let renew = due.then(|| self.snapshots.clone());
                Step::Append { number: self.acknowledged + 1, renew }
            }
        }
    }

    fn snapshot_due(&self) -> bool {
        self.tail_bytes >= LEAST_TAIL_BYTES.max(self.blocks * BLOCK_BYTES)
    }

    /// Takes note of how `step` went.
    pub fn done(&mut self, step: &Step, outcome: Outcome, now: Time) {
        match (step, outcome) {
            (_, Outcome::Lost) => {
                self.abandon();
                self.phase = Phase::Unsure;
            }
            (_, Outcome::Refused) => {
                // A refused batch is offered again; a snapshot begins anew, so that its bytes are not held meanwhile.
                if self.abandon() {
                    self.phase = Phase::Unsure;
                }
            }
            (Step::Look, Outcome::Looked { last, snapshots }) => self.looked(last, snapshots),
            (Step::Compare { number }, Outcome::Compared(ours)) => {
                self.phase = match ours {
                    Some(true) if self.whole_from.is_some() => Phase::Steady,
                    Some(false) => Phase::Clearing,
                    Some(true) | None => self.mend(),
                };
                if ours == Some(true) {
                    self.acknowledged = *number;
                }
            }
            (Step::Append { number, renew }, Outcome::Appended { changes, renewed }) => {
                self.acknowledged = *number;
                self.tail_bytes += BATCH_BYTES + changes * CHANGE_BYTES;
                if renew.as_ref().is_some_and(|snapshots| !snapshots.is_empty()) {
                    self.renewed_at = Some(now);
                }
                if !renewed {
                    // Emptied or failed over behind a connection that hid it.
                    self.phase = self.mend();
                }
            }
            (Step::Append { number, .. }, Outcome::NotGreater) => {
                self.abandon();
                self.phase = Phase::Comparing { number: *number };
            }
            (Step::TakeSnapshot, Outcome::Taken { at, chunks, blocks }) => {
                self.phase = Phase::Chunks { at, next: 0, chunks, blocks };
            }
            (Step::Chunk { .. }, Outcome::Done) => {
                if let Phase::Chunks { at, next, chunks, blocks } = self.phase {
                    let next = next + 1;
                    self.phase = if next < chunks {
                        Phase::Chunks { at, next, chunks, blocks }
                    } else {
                        Phase::Pointing { at, blocks }
                    };
                }
            }
            // A pointer that is there already is this one: its content follows from its batch.
            (Step::Point { .. }, Outcome::Done | Outcome::NotGreater) => self.pointed(),
            (Step::Tidy { drop, .. }, Outcome::Done) => {
                drop.iter().for_each(|at| _ = self.garbage.remove(at));
                self.phase = Phase::Steady;
            }
            (Step::Clear, Outcome::Done) => {
                self.snapshots.clear();
                self.phase = self.mend();
            }
            (step, outcome) => debug_assert!(false, "{outcome:?} is no outcome of {step:?}"),
        }
    }

    fn looked(&mut self, last: Option<u64>, snapshots: Vec<u64>) {
        let is_whole = |newest: &u64| self.whole_from.is_some_and(|from| *newest >= from);
        let usable = snapshots.first().is_some_and(|at| is_whole(at) && self.snapshots.contains(at));
        // What was written as a snapshot and what is in the stream may end at the same batch, or the stream a little before.
        let reached = last.max(snapshots.first().copied());
        self.garbage.extend(self.snapshots.iter().filter(|at| !snapshots.contains(at)));
        self.snapshots = snapshots;
        self.snapshots.iter().for_each(|at| _ = self.garbage.remove(at));
        self.phase = match reached {
            Some(reached) if usable && reached == self.acknowledged => Phase::Steady,
            Some(_) if usable && last == Some(self.acknowledged + 1) => {
                Phase::Comparing { number: self.acknowledged + 1 }
            }
            _ => self.mend(),
        };
        self.limit_garbage();
    }

    fn pointed(&mut self) {
        let Phase::Pointing { at, blocks } = self.phase else { return };
        let mut pointers = vec![at];
        pointers.extend(self.snapshots.iter().copied().filter(|older| *older != at));
        self.garbage.extend(pointers.drain(pointers.len().min(2)..));
        self.garbage.remove(&at);
        self.limit_garbage();
        self.snapshots = pointers;
        if self.acknowledged < at || self.whole_from.is_none() {
            self.whole_from = Some(at);
        }
        self.acknowledged = at;
        self.blocks = blocks;
        self.tail_bytes = 0;
        self.renewed_at = None;
        self.phase = Phase::Tidying { below: self.snapshots.get(1).map(|previous| previous + 1) };
    }

    /// What is there is not what was written: a snapshot is needed.
    fn mend(&mut self) -> Phase {
        self.whole_from = None;
        Phase::Snapshot
    }

    /// Gives up a snapshot that is not complete; false when there was none.
    fn abandon(&mut self) -> bool {
        match self.phase {
            Phase::Chunks { at, .. } | Phase::Pointing { at, .. } => {
                if !self.snapshots.contains(&at) {
                    self.garbage.insert(at);
                }
                self.limit_garbage();
                true
            }
            _ => false,
        }
    }

    fn limit_garbage(&mut self) {
        while self.garbage.len() > MAX_GARBAGE {
            self.garbage.pop_first();
        }
    }
}
