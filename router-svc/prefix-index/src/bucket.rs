//! A cache line of blocks.
//!
//! A block is one word, `tag * 2^22 + holders`: a single store changes who has it, and a single load reads it whole. A block lies in its
//! home bucket or in one of the next [`REACH`]; `passed` counts the blocks that lie further on because this bucket was full, so a search
//! that finds it zero is over. Nothing moves: a table that must be larger is built anew and replaces the old one.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use crate::holders::Holders;
use crate::mix::home;
use crate::value::Value;

/// Blocks in a bucket.
pub(crate) const SLOTS: usize = 6;
/// Buckets beyond its home in which a block may lie: bounds every search.
pub(crate) const REACH: usize = 15;
/// From here on the count of those that passed is no longer exact, and stays.
const PASSED_MANY: u8 = u8::MAX;

/// Blocks, with what they are worth.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    words: [AtomicU64; SLOTS],
    values: [AtomicU16; SLOTS],
    passed: AtomicU8,
}

/// A block in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

/// Where in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) bucket: usize,
    slot: usize,
}

impl Word {
    pub(crate) fn new(tag: u64, holders: Holders) -> Self {
        Self(tag << Holders::BITS | u64::from(holders.0))
    }

    #[inline]
    pub(crate) fn tag(self) -> u64 {
        self.0 >> Holders::BITS
    }

    #[inline]
    pub(crate) fn holders(self) -> Holders {
        Holders((self.0 & ((1 << Holders::BITS) - 1)) as u32)
    }
}

/// A table of `buckets` empty buckets.
pub(crate) fn table(buckets: usize) -> Box<[Bucket]> {
    (0..buckets).map(|_| Bucket::default()).collect()
}

#[inline]
fn after(bucket: usize, table: &[Bucket]) -> usize {
    if bucket + 1 == table.len() { 0 } else { bucket + 1 }
}

/// The block of a tag.
#[inline]
pub(crate) fn find(table: &[Bucket], tag: u64) -> Option<(At, Word)> {
    if table.is_empty() {
        return None;
    }
    let mut at = home(tag, table.len());
    for _ in 0..=REACH.min(table.len() - 1) {
        let bucket = &table[at];
        for (slot, word) in bucket.words.iter().enumerate() {
            let word = Word(word.load(Ordering::Acquire));
            // An empty slot has the tag 0 and no holders.
            if word.tag() == tag && word.0 != 0 {
                return Some((At { bucket: at, slot }, word));
            }
        }
        if bucket.passed.load(Ordering::Acquire) == 0 {
            return None;
        }
        at = after(at, table);
    }
    None
}

/// Puts in a block that is not there; false when there is no room within reach. Writers only, one at a time.
pub(crate) fn insert(table: &[Bucket], word: Word, value: Value) -> bool {
    if table.is_empty() {
        return false;
    }
    let home = home(word.tag(), table.len());
    let mut at = home;
    for _ in 0..=REACH.min(table.len() - 1) {
        let bucket = &table[at];
        let free = bucket.words.iter().position(|word| word.load(Ordering::Relaxed) == 0);
        let Some(slot) = free else {
            at = after(at, table);
            continue;
        };
        let mut passing = home;
        while passing != at {
            let passed = &table[passing].passed;
            passed.store(passed.load(Ordering::Relaxed).saturating_add(1), Ordering::Release);
            passing = after(passing, table);
        }
        bucket.values[slot].store(value.0, Ordering::Relaxed);
        bucket.words[slot].store(word.0, Ordering::Release);
        return true;
    }
    false
}

/// Takes a block out. Writers only.
pub(crate) fn remove(table: &[Bucket], at: At, tag: u64) {
    table[at.bucket].words[at.slot].store(0, Ordering::Release);
    let mut passed = home(tag, table.len());
    while passed != at.bucket {
        let counter = &table[passed].passed;
        let count = counter.load(Ordering::Relaxed);
        if count != PASSED_MANY {
            counter.store(count - 1, Ordering::Release);
        }
        passed = after(passed, table);
    }
}

/// Changes who has a block. Writers only.
pub(crate) fn replace(table: &[Bucket], at: At, word: Word) {
    table[at.bucket].words[at.slot].store(word.0, Ordering::Release);
}

/// What a block is worth.
#[inline]
pub(crate) fn value(table: &[Bucket], at: At) -> Value {
    Value(table[at.bucket].values[at.slot].load(Ordering::Relaxed))
}

/// Says what a block is worth. Readers may: the worst of a race is a block that is worth more or less than it should be.
pub(crate) fn set_value(table: &[Bucket], at: At, value: Value) {
    table[at.bucket].values[at.slot].store(value.0, Ordering::Relaxed);
}

/// Every block of a table.
pub(crate) fn blocks(table: &[Bucket]) -> impl Iterator<Item = (At, Word)> + '_ {
    table.iter().enumerate().flat_map(|(bucket, held)| {
        let words = held.words.iter().map(|word| Word(word.load(Ordering::Acquire))).enumerate();
        words.filter(|(_, word)| word.0 != 0).map(move |(slot, word)| (At { bucket, slot }, word))
    })
}
