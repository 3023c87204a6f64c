//! Storing and removing.

use std::sync::atomic::Ordering;

use crate::bucket;
use crate::epochs::Pin;
use crate::holders::Member;
use crate::index::Index;
use crate::mix::Place;
use crate::options::MAX_SHARDS;
use crate::sets::NoRoom;
use crate::shard::{Ground, Writer};
use crate::value::Value;
use crate::workers::Worker;

/// Tiers that a block can be in, numbered from 0.
pub const TIERS: u8 = 4;
/// Blocks whose cache lines are asked for together; as many as a mask has bits.
const BATCH: usize = 32;
/// Rounds of forgetting for one block's sake, before it is not kept.
const ROUNDS: usize = 3;

/// What comes before the first of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing: it starts a sequence.
    Root,
    /// The block of this hash.
    Block(u64),
    /// Not said: the blocks are a set without order.
    Unknown,
}

/// A block on its way in or out.
#[derive(Clone, Copy, Default)]
struct Item {
    hash: u64,
    place: Place,
    value: Value,
    done: bool,
}

/// A call to store blocks.
struct Run {
    worker: Worker,
    tier: u8,
    /// Whether the worker did not have the blocks.
    anew: bool,
    /// What the block before the next one is worth.
    above: Option<Value>,
    /// The highest key that was forgotten for this call's sake: what follows in a chain must not stay without what comes before it.
    line: Option<u32>,
}

impl Index {
    /// Stores blocks of a worker in a tier: consecutive ones of one sequence, or, when their parent is [`Parent::Unknown`], any that the worker
    /// did not have there. Answers how many were absent there before. Those that find no room are counted as forgotten, and so are, without
    /// a parent, those that cannot be told from a block that is there.
    pub fn store(&self, worker: Worker, parent: Parent, blocks: &[u64], tier: u8) -> usize {
        let mut items = [Item::default(); BATCH];
        let anew = parent == Parent::Unknown;
        let mut run = Run { worker, tier, anew, above: None, line: None };
        let mut depth = (parent == Parent::Root).then_some(0);
        let mut absent = 0;
        for (batch, chunk) in blocks.chunks(BATCH).enumerate() {
            let items = &mut items[..chunk.len()];
            let pin = self.epochs.pin();
            self.approach(items, chunk, &pin);
            if let (0, Parent::Block(parent)) = (batch, parent) {
                run.above = self.value(parent, &pin);
                depth = run.above.and_then(Value::depth).map(|depth| depth.saturating_add(1));
                if run.above.is_none() && self.forgot.load(Ordering::Relaxed) {
                    // What nobody can reach is not kept, once anything has been forgotten.
                    run.line = Some(u32::MAX);
                }
            }
            for item in items.iter_mut() {
                let Some(at) = depth else { continue };
                item.value = Value::stored(at, run.above);
                run.above = Some(item.value);
                depth = Some(at.saturating_add(1));
            }
            absent += self.store_batch(&mut run, items, pin);
        }
        self.step();
        absent
    }

    /// Blocks that will be stored or removed after a few others: asks for their cache lines.
    pub fn expect(&self, blocks: &[u64]) {
        let pin = self.epochs.pin();
        for hash in blocks.iter().take(BATCH) {
            self.prefetch(self.mixer.place(*hash), &pin);
        }
    }

    /// Removes blocks of a worker from a tier. Answers how many were there, those forgotten earlier counted as having been there.
    pub fn remove(&self, worker: Worker, blocks: &[u64], tier: u8) -> usize {
        let mut items = [Item::default(); BATCH];
        let mut found = 0;
        for chunk in blocks.chunks(BATCH) {
            let items = &mut items[..chunk.len()];
            let pin = self.epochs.pin();
            self.approach(items, chunk, &pin);
            let member = member(worker, tier);
            let all = self.each(worker, items, &pin, |writer, ground, item| {
                found += usize::from(writer.remove(ground, item.place, member, self.digested(item, tier)));
                Ok(())
            });
            debug_assert!(all.is_ok(), "removing needs no room");
        }
        self.step();
        found
    }

    /// A request goes to a worker that has these blocks, the first of a prompt: they are worth more from now on.
    pub fn hit(&self, prefix: &[u64]) {
        let pin = self.epochs.pin();
        for (depth, hash) in prefix.iter().enumerate().rev() {
            let place = self.mixer.place(*hash);
            let table = self.table(place, &pin);
            let Some((at, _)) = bucket::find(table, place.tag) else { continue };
            let worth = Value::hit(u32::try_from(depth).unwrap_or(u32::MAX));
            if bucket::value(table, at) >= worth {
                // Hits go to whole prefixes: what is before it is as warm.
                return;
            }
            bucket::set_value(table, at, worth);
        }
    }

    /// Makes items of hashes, and asks for where they lie.
    fn approach(&self, items: &mut [Item], hashes: &[u64], pin: &Pin<'_>) {
        for (item, hash) in items.iter_mut().zip(hashes) {
            *item = Item { hash: *hash, place: self.mixer.place(*hash), value: Value::UNKNOWN, done: false };
            self.prefetch(item.place, pin);
        }
    }

    fn value(&self, hash: u64, pin: &Pin<'_>) -> Option<Value> {
        let place = self.mixer.place(hash);
        let table = self.table(place, pin);
        bucket::find(table, place.tag).map(|(at, _)| bucket::value(table, at))
    }

    fn digested(&self, item: &Item, tier: u8) -> u64 {
        (self.digest)(item.hash, tier)
    }

    fn store_batch<'p>(&'p self, run: &mut Run, items: &mut [Item], mut pin: Pin<'p>) -> usize {
        let member = member(run.worker, run.tier);
        let mut absent = 0;
        let mut rounds = 0;
        loop {
            let line = run.line;
            let stored = self.each(run.worker, items, &pin, |writer, ground, item| {
                let key = item.value.key(item.place.tag);
                if line.is_some_and(|line| key <= line) {
                    writer.forgone(run.worker.place(), self.digested(item, run.tier));
                    absent += 1;
                } else if writer.store(ground, item.place, member, item.value)? {
                    writer.counted(run.worker.place(), self.digested(item, run.tier));
                    absent += 1;
                } else if run.anew {
                    writer.forgone(run.worker.place(), self.digested(item, run.tier));
                    absent += 1;
                }
                Ok(())
            });
            let Err(full) = stored else { return absent };
            rounds += 1;
            drop(pin);
            if rounds == 1 {
                self.free_some();
            } else {
                // In the end there is room for this block or it goes with the others.
                let own = if rounds > ROUNDS { full.value.key(full.place.tag) } else { 0 };
                run.line = run.line.max(Some(self.forget(full.place, own)));
                // What is stored already is a round older now, and what follows it in the chain must not be worth more.
                run.above = run.above.map(Value::aged);
                items.iter_mut().for_each(|item| item.value = item.value.aged());
            }
            pin = self.epochs.pin();
        }
    }

    /// Runs `step` for each item that is not done, those of a shard together under its lock and in order, until it finds no room; nothing
    /// for a worker that is dead.
    fn each(
        &self,
        worker: Worker,
        items: &mut [Item],
        pin: &Pin<'_>,
        mut step: impl FnMut(&mut Writer, Ground<'_>, &Item) -> Result<(), NoRoom>,
    ) -> Result<(), Item> {
        let mut of_shard = [0u32; MAX_SHARDS];
        for (at, item) in items.iter().enumerate().filter(|(_, item)| !item.done) {
            of_shard[self.shard_of(item.place)] |= 1 << at;
        }
        for (shard, mut mask) in of_shard.into_iter().enumerate().filter(|(_, mask)| *mask != 0) {
            let mut writer = self.shards[shard].writer();
            if !self.workers.lives(worker) {
                return Ok(());
            }
            let ground = self.ground(shard, pin);
            while mask != 0 {
                let item = &mut items[mask.trailing_zeros() as usize];
                step(&mut writer, ground, item).map_err(|NoRoom| *item)?;
                item.done = true;
                mask &= mask - 1;
            }
            if writer.has_litter() {
                self.litter.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

fn member(worker: Worker, tier: u8) -> Member {
    Member::new(worker.slot(), 1 << (tier % TIERS))
}
