//! What writers do beside their own: forgetting, sweeping, freeing.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::index::Index;
use crate::mix::Place;

/// Keys looked at to find out what is worth least, and the part of them that is forgotten at once.
const SAMPLE: usize = 4_096;
const FORGET_FRACTION: usize = 16;
/// The part of all segments that one call sweeps, so that nobody waits for a whole sweep.
const TIDY_FRACTION: usize = 16;

impl Index {
    /// Does a part of what writers leave undone when there are none: sweeps some segments, and frees memory. False when nothing is left to do.
    pub fn tidy(&self) -> bool {
        self.sweep(self.tables.len() / TIDY_FRACTION);
        self.free_some();
        drop(self.workers.sweep(&self.epochs));
        self.workers.is_ending()
    }

    /// Frees what can be freed without forgetting.
    pub(crate) fn free_some(&self) {
        for _ in 0..3 {
            self.epochs.advance();
        }
        (0..self.shards.len()).for_each(|shard| self.collect(shard));
    }

    fn collect(&self, shard: usize) {
        let mut writer = self.shards[shard].writer();
        if writer.has_unlinked() {
            let pin = self.epochs.pin();
            writer.collect(self.ground(shard, &pin));
        }
    }

    /// Forgets about a sixteenth of everything, what is worth least: at least one block of the segment of `place`, and what has keys up to
    /// `least`. Answers the highest key that went.
    pub(crate) fn forget(&self, place: Place, least: u32) -> u32 {
        let _alone = self.forgetting.lock().unwrap_or_else(PoisonError::into_inner);
        let line = self.line(place).max(least);
        self.forgot.store(true, Ordering::Relaxed);
        let tables = self.tables.len() / self.shards.len();
        for shard in 0..self.shards.len() {
            for segment in 0..tables {
                let pin = self.epochs.pin();
                self.shards[shard].writer().forget(self.ground(shard, &pin), segment, line);
            }
        }
        self.free_some();
        line
    }

    /// The key up to which a sixteenth of the blocks lie, by a sample that begins with the segment of `place`; at least its lowest.
    fn line(&self, place: Place) -> u32 {
        let tables = self.tables.len() / self.shards.len();
        let from = place.segment as usize;
        let mut keys = Vec::with_capacity(SAMPLE);
        let mut lowest = None;
        for segment in (from..self.tables.len()).chain(0..from) {
            let pin = self.epochs.pin();
            let shard = segment / tables;
            self.shards[shard].writer().keys(self.ground(shard, &pin), segment % tables, &mut keys);
            lowest = lowest.or_else(|| keys.iter().copied().min());
            if keys.len() >= SAMPLE {
                break;
            }
        }
        let last = keys.len() / FORGET_FRACTION;
        if last >= keys.len() { 0 } else { (*keys.select_nth_unstable(last).1).max(lowest.unwrap_or(0)) }
    }

    /// A little of what is left to do, at the end of every write.
    pub(crate) fn step(&self) {
        if self.workers.is_ending() {
            self.sweep(1);
        }
        if self.litter.load(Ordering::Relaxed) && self.litter.swap(false, Ordering::Relaxed) {
            self.epochs.advance();
            (0..self.shards.len()).for_each(|shard| self.collect(shard));
        }
    }

    /// Sweeps so many segments, if there is something to sweep.
    fn sweep(&self, segments: usize) {
        let mut ends = self.workers.sweep(&self.epochs);
        let tables = self.tables.len() / self.shards.len();
        for _ in 0..segments {
            if !ends.sweeping() {
                return;
            }
            let pin = self.epochs.pin();
            let (shard, segment) = (ends.next_segment / tables, ends.next_segment % tables);
            self.shards[shard].writer().sweep(self.ground(shard, &pin), segment);
            ends.next_segment += 1;
            if ends.next_segment == self.tables.len() {
                ends.done(&self.epochs);
            }
        }
    }
}
