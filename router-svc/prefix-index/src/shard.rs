//! What a writer does to the tables of its shard, one writer at a time.

use std::collections::VecDeque;

use crate::bucket::{self, At, Bucket, SLOTS, Word};
use crate::budget::Budget;
use crate::epochs::{Epochs, Pin};
use crate::holders::{Holders, Member};
use crate::mix::Place;
use crate::published::{Published, Unlinked};
use crate::sets::{Interner, NoRoom, Sets};
use crate::size::fitting;
use crate::value::Value;
use crate::workers::Workers;

/// Tables and sets that wait to be freed before a writer looks whether they can be.
const LITTER: usize = 32;

/// What an index holds of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// (block, tier) pairs held.
    pub count: u64,
    /// Wrapping sum of the digests of the pairs that the worker has: those held and those forgotten.
    pub digest: u64,
    /// Pairs that the worker has and the index has let go of.
    pub forgotten: u64,
}

/// What a writer works on.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    /// Tables of the shard.
    pub(crate) tables: &'a [Published<Bucket>],
    pub(crate) sets: &'a Sets,
    pub(crate) epochs: &'a Epochs,
    pub(crate) budget: &'a Budget,
    pub(crate) workers: &'a Workers,
    pub(crate) pin: &'a Pin<'a>,
}

/// A writer's own state.
pub(crate) struct Writer {
    /// Blocks per table.
    filled: Box<[u32]>,
    interner: Interner,
    accounts: Box<[Held]>,
    unlinked: VecDeque<Unlinked<Bucket>>,
    pub(crate) pairs: u64,
    pub(crate) forgotten: u64,
}

impl Writer {
    /// Bytes per table, per worker, and otherwise.
    pub(crate) const BYTES: (usize, usize, usize) =
        (size_of::<u32>(), size_of::<Held>() + size_of::<Member>(), 4_096);

    pub(crate) fn new(tables: usize, workers: usize, key: u64) -> Self {
        Self {
            filled: vec![0; tables].into(),
            interner: Interner::new(key),
            accounts: vec![Held::default(); workers].into(),
            unlinked: VecDeque::new(),
            pairs: 0,
            forgotten: 0,
        }
    }

    pub(crate) fn held(&self, worker: usize) -> Held {
        self.accounts[worker]
    }

    /// Ends a worker's account.
    pub(crate) fn end(&mut self, worker: usize) {
        self.pairs -= self.accounts[worker].count;
        self.accounts[worker] = Held::default();
    }

    /// Stores a block of one tier of one worker. True when it was absent there; its digest is to be [`Self::counted`] then.
    pub(crate) fn store(
        &mut self,
        ground: Ground<'_>,
        place: Place,
        member: Member,
        value: Value,
    ) -> Result<bool, NoRoom> {
        let segment = place.segment as usize & (ground.tables.len() - 1);
        let table = ground.tables[segment].read(ground.pin);
        let Some((at, word)) = bucket::find(table, place.tag) else {
            self.insert(ground, segment, Word::new(place.tag, Holders::one(member)), value)?;
            return Ok(true);
        };
        let before = word.holders();
        let after = self.interner.with(before, member, ground.sets, ground.pin, ground.budget)?;
        if value > bucket::value(table, at) {
            bucket::set_value(table, at, value);
        }
        if after == before {
            return Ok(false);
        }
        self.rename(ground, segment, at, word, after);
        Ok(true)
    }

    /// Counts a pair that was stored.
    pub(crate) fn counted(&mut self, worker: usize, digest: u64) {
        let account = &mut self.accounts[worker];
        account.count += 1;
        account.digest = account.digest.wrapping_add(digest);
        self.pairs += 1;
    }

    /// Counts a pair that is not kept.
    pub(crate) fn forgone(&mut self, worker: usize, digest: u64) {
        let account = &mut self.accounts[worker];
        account.forgotten += 1;
        account.digest = account.digest.wrapping_add(digest);
        self.forgotten += 1;
    }

    /// Takes a block of one tier from a worker. False when the worker cannot have had it.
    pub(crate) fn remove(&mut self, ground: Ground<'_>, place: Place, member: Member, digest: u64) -> bool {
        let segment = place.segment as usize & (ground.tables.len() - 1);
        let table = ground.tables[segment].read(ground.pin);
        let present =
            bucket::find(table, place.tag).filter(|(_, word)| holds(ground, word.holders(), member));
        let worker = usize::from(member.slot());
        let Some((at, word)) = present else {
            let account = &mut self.accounts[worker];
            if account.forgotten == 0 {
                return false;
            }
            account.forgotten -= 1;
            account.digest = account.digest.wrapping_sub(digest);
            return true;
        };
        let rest = self.interner.without(word.holders(), member, ground.sets, ground.pin, ground.budget);
        let account = &mut self.accounts[worker];
        account.count -= 1;
        account.digest = account.digest.wrapping_sub(digest);
        self.pairs -= 1;
        match rest {
            Ok(rest) => self.rename(ground, segment, at, word, rest),
            Err(NoRoom) => {
                // The set without it has no room: nobody may keep the block then.
                self.forget_others(ground, word.holders(), member);
                self.rename(ground, segment, at, word, Holders::NOBODY);
            }
        }
        self.shrink(ground, segment);
        true
    }

    /// Forgets the blocks of a table whose keys are at most `line`, and makes the others a round older.
    pub(crate) fn forget(&mut self, ground: Ground<'_>, segment: usize, line: u32) {
        let table = ground.tables[segment].read(ground.pin);
        for (at, word) in bucket::blocks(table) {
            let value = bucket::value(table, at);
            if value.key(word.tag()) > line {
                bucket::set_value(table, at, value.aged());
                continue;
            }
            self.forget_others(ground, word.holders(), Member(0));
            self.rename(ground, segment, at, word, Holders::NOBODY);
        }
    }

    /// Takes the dead out of the blocks of a table.
    pub(crate) fn sweep(&mut self, ground: Ground<'_>, segment: usize) {
        let table = ground.tables[segment].read(ground.pin);
        let lives = |member: &Member| ground.workers.is_live(member.slot());
        for (at, word) in bucket::blocks(table) {
            let holders = word.holders();
            let rest = match (holders.as_one(), holders.as_set()) {
                (Some(one), _) if lives(&one) => continue,
                (None, Some(set)) => {
                    let members = ground.sets.read(set, ground.pin);
                    if members.iter().all(|member| lives(&member)) {
                        continue;
                    }
                    let living: Vec<_> = members.iter().filter(lives).collect();
                    self.interner.interned(&living, ground.sets, ground.pin, ground.budget)
                }
                _ => Ok(Holders::NOBODY),
            };
            if rest.is_err() {
                self.forget_others(ground, holders, Member(0));
            }
            self.rename(ground, segment, at, word, rest.unwrap_or(Holders::NOBODY));
        }
        self.shrink(ground, segment);
    }

    /// Keys of a table's blocks.
    pub(crate) fn keys(&self, ground: Ground<'_>, segment: usize, keys: &mut Vec<u32>) {
        let table = ground.tables[segment].read(ground.pin);
        keys.extend(bucket::blocks(table).map(|(at, word)| bucket::value(table, at).key(word.tag())));
    }

    /// Frees what nobody can see any more.
    pub(crate) fn collect(&mut self, ground: Ground<'_>) {
        while let Some(unlinked) = self.unlinked.pop_front() {
            let bytes = unlinked.bytes();
            match unlinked.free(ground.epochs) {
                Ok(()) => ground.budget.release(bytes),
                Err(unlinked) => {
                    self.unlinked.push_front(unlinked);
                    break;
                }
            }
        }
        self.interner.collect(ground.sets, ground.pin, ground.epochs, ground.budget);
    }

    /// Whether there is so much to free that a look at the readers is worth its while.
    pub(crate) fn has_litter(&self) -> bool {
        self.unlinked.len() + self.interner.ended() > LITTER
    }

    /// Whether there is something to free.
    pub(crate) fn has_unlinked(&self) -> bool {
        !self.unlinked.is_empty() || self.interner.ended() > 0
    }

    fn insert(&mut self, ground: Ground<'_>, segment: usize, word: Word, value: Value) -> Result<(), NoRoom> {
        let filled = self.filled[segment] as usize + 1;
        let mut table = ground.tables[segment].read(ground.pin);
        if filled * 8 > table.len() * SLOTS * 7 || !bucket::insert(table, word, value) {
            loop {
                self.rebuild(ground, segment, filled.max(table.len() * SLOTS * 7 / 8))?;
                table = ground.tables[segment].read(ground.pin);
                if bucket::insert(table, word, value) {
                    break;
                }
            }
        }
        self.filled[segment] += 1;
        Ok(())
    }

    /// Makes the table one in which so many blocks take three quarters.
    fn rebuild(&mut self, ground: Ground<'_>, segment: usize, blocks: usize) -> Result<(), NoRoom> {
        let old = ground.tables[segment].read(ground.pin);
        let mut buckets = fitting((blocks * 4).div_ceil(3 * SLOTS).max(1)).ok_or(NoRoom)?;
        loop {
            let bytes = buckets * size_of::<Bucket>();
            if !ground.budget.reserve_for_tables(bytes) {
                return Err(NoRoom);
            }
            let new = bucket::table(buckets);
            let copied = |(at, word)| bucket::insert(&new, word, bucket::value(old, at));
            if bucket::blocks(old).all(copied) {
                self.unlinked.push_back(ground.tables[segment].publish(Some(new), ground.epochs));
                return Ok(());
            }
            ground.budget.release(bytes);
            buckets = fitting(buckets + 1).ok_or(NoRoom)?;
        }
    }

    /// Gives memory back when a table is less than half full.
    fn shrink(&mut self, ground: Ground<'_>, segment: usize) {
        let table = ground.tables[segment].read(ground.pin);
        let filled = self.filled[segment] as usize;
        if filled == 0 && !table.is_empty() {
            self.unlinked.push_back(ground.tables[segment].publish(None, ground.epochs));
        } else if table.len() > 1 && filled * 2 < table.len() * SLOTS {
            // Without room for the smaller table beside the larger, it stays until there is some.
            _ = self.rebuild(ground, segment, filled);
        }
    }

    /// Writes other holders over those of a block; without any the block is gone.
    fn rename(&mut self, ground: Ground<'_>, segment: usize, at: At, word: Word, to: Holders) {
        let table = ground.tables[segment].read(ground.pin);
        if to == Holders::NOBODY {
            bucket::remove(table, at, word.tag());
            self.filled[segment] -= 1;
        } else {
            self.interner.name(to);
            bucket::replace(table, at, Word::new(word.tag(), to));
        }
        self.interner.unname(word.holders(), ground.sets, ground.pin, ground.epochs);
    }

    /// Counts a block as forgotten for each holder that lives; of `removed` only the tiers it keeps.
    fn forget_others(&mut self, ground: Ground<'_>, holders: Holders, removed: Member) {
        let one = holders.as_one();
        let set = holders.as_set().map(|set| ground.sets.read(set, ground.pin));
        for member in one.into_iter().chain(set.into_iter().flat_map(|members| members.iter())) {
            if !ground.workers.is_live(member.slot()) {
                continue;
            }
            let tiers = if member.slot() == removed.slot() {
                member.tiers() & !removed.tiers()
            } else {
                member.tiers()
            };
            let pairs = u64::from(tiers.count_ones());
            let account = &mut self.accounts[usize::from(member.slot())];
            account.count -= pairs;
            account.forgotten += pairs;
            self.pairs -= pairs;
            self.forgotten += pairs;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.unlinked.drain(..).for_each(Unlinked::free_at_the_end);
    }
}

/// Whether a worker has a block in the tier of `member`.
fn holds(ground: Ground<'_>, holders: Holders, member: Member) -> bool {
    let has = |held: Member| held.slot() == member.slot() && held.tiers() & member.tiers() != 0;
    match (holders.as_one(), holders.as_set()) {
        (Some(one), _) => has(one),
        (None, Some(set)) => ground.sets.read(set, ground.pin).iter().any(has),
        (None, None) => false,
    }
}
