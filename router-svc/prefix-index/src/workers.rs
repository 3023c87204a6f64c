//! Numbers of workers: given out, dead at once when a worker is dropped, and given out again only when no block names them any more.
//!
//! Readers leave out the dead. A sweep takes them out of every block; it is done in small steps by whoever writes. After a sweep that began
//! after the worker's end, and after every reader who may have seen an earlier state has left, the number is free.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::epochs::Epochs;
use crate::holders::Slot;

/// A worker of an index. No later worker has the same value until 65,536 others have had its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker(u32);

impl Worker {
    fn new(slot: Slot, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(slot))
    }

    pub(crate) fn slot(self) -> Slot {
        self.0 as Slot
    }

    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Its place: below the index's limit of workers, and its own until it is dropped.
    pub fn place(self) -> usize {
        usize::from(self.slot())
    }
}

/// Which sweeps are to be done.
#[derive(Default)]
pub(crate) struct Ends {
    free: Vec<Slot>,
    unused: usize,
    /// Dead since the sweep under way began.
    waiting: Vec<Slot>,
    /// Those that the sweep under way takes out.
    swept: Vec<Slot>,
    /// The next segment of the sweep.
    pub(crate) next_segment: usize,
    /// Taken out of every block, but perhaps still seen.
    resting: VecDeque<(u64, Vec<Slot>)>,
}

/// The numbers of an index.
pub(crate) struct Workers {
    dead: Box<[AtomicU64]>,
    generations: Box<[AtomicU16]>,
    ends: Mutex<Ends>,
    /// Whether something waits for a sweep or rests.
    ending: AtomicBool,
}

impl Workers {
    /// Bytes per worker.
    pub(crate) const BYTES: usize = 8;

    pub(crate) fn new(max: usize) -> Self {
        Self {
            dead: (0..max.div_ceil(64)).map(|_| AtomicU64::new(u64::MAX)).collect(),
            generations: (0..max).map(|_| AtomicU16::new(0)).collect(),
            ends: Mutex::default(),
            ending: AtomicBool::new(false),
        }
    }

    /// The next number; none when all are taken.
    pub(crate) fn add(&self, epochs: &Epochs) -> Option<Worker> {
        let mut ends = self.ends();
        ends.rested(epochs);
        let slot = match ends.free.pop() {
            Some(slot) => slot,
            None if ends.unused < self.generations.len() => {
                ends.unused += 1;
                (ends.unused - 1) as Slot
            }
            None => return None,
        };
        self.word(slot).fetch_and(!bit(slot), Ordering::AcqRel);
        Some(Worker::new(slot, self.generations[usize::from(slot)].load(Ordering::Acquire)))
    }

    /// Ends a worker; false when it has ended before.
    pub(crate) fn end(&self, worker: Worker) -> bool {
        let mut ends = self.ends();
        if !self.lives(worker) {
            return false;
        }
        let slot = worker.slot();
        self.word(slot).fetch_or(bit(slot), Ordering::AcqRel);
        self.generations[usize::from(slot)].fetch_add(1, Ordering::AcqRel);
        ends.waiting.push(slot);
        self.ending.store(true, Ordering::Release);
        true
    }

    pub(crate) fn lives(&self, worker: Worker) -> bool {
        self.generations.get(worker.place()).is_some_and(|generation| {
            self.is_live(worker.slot()) && generation.load(Ordering::Acquire) == worker.generation()
        })
    }

    #[inline]
    pub(crate) fn is_live(&self, slot: Slot) -> bool {
        self.word(slot).load(Ordering::Acquire) & bit(slot) == 0
    }

    /// Whose number it is, if it lives.
    pub(crate) fn live(&self, slot: Slot) -> Option<Worker> {
        let generation = self.generations[usize::from(slot)].load(Ordering::Acquire);
        self.is_live(slot).then(|| Worker::new(slot, generation))
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// The sweep to be done, for one sweeper at a time; it begins one if there is none and somebody waits.
    pub(crate) fn sweep(&self, epochs: &Epochs) -> MutexGuard<'_, Ends> {
        let mut ends = self.ends();
        ends.rested(epochs);
        if ends.swept.is_empty() && !ends.waiting.is_empty() {
            ends.swept = std::mem::take(&mut ends.waiting);
            ends.next_segment = 0;
        }
        let idle = ends.swept.is_empty() && ends.resting.is_empty();
        self.ending.store(!idle, Ordering::Release);
        ends
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self, slot: Slot) -> &AtomicU64 {
        &self.dead[usize::from(slot) / 64]
    }
}

impl Ends {
    /// Whether a sweep is under way.
    pub(crate) fn sweeping(&self) -> bool {
        !self.swept.is_empty()
    }

    /// The sweep has been through every segment.
    pub(crate) fn done(&mut self, epochs: &Epochs) {
        let swept = std::mem::take(&mut self.swept);
        self.resting.push_back((epochs.mark(), swept));
    }

    fn rested(&mut self, epochs: &Epochs) {
        while self.resting.front().is_some_and(|(mark, _)| epochs.passed(*mark)) {
            self.free.extend(self.resting.pop_front().map(|(_, slots)| slots).unwrap_or_default());
        }
    }
}

fn bit(slot: Slot) -> u64 {
    1 << (slot % 64)
}
