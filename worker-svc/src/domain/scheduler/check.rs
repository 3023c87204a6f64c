//! What is always true, recounted from the sequences: used by tests.

use std::collections::BTreeMap;

use super::Scheduler;
use super::sequence::Phase;
use crate::domain::ids::BlockId;

impl Scheduler {
    /// Verifies that no block is leaked or has two writers, that every promise can be kept, that counts
    /// agree with what they count, and that what waits holds nothing.
    ///
    /// # Errors
    /// Names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.kv.check()?;
        self.check_references()?;
        self.check_writers()?;
        self.check_copies()?;
        self.check_queues()
    }

    fn check_references(&self) -> Result<(), String> {
        let mut holders: BTreeMap<BlockId, u32> = BTreeMap::new();
        let in_flight = self.in_flight.iter().flat_map(|step| &step.copies);
        let copied = self.copies.iter().chain(in_flight).map(|pending| pending.copy.from);
        let tables = self.seqs.values().flat_map(|seq| seq.table.iter().copied());
        for block in tables.chain(copied) {
            *holders.entry(block).or_default() += 1;
        }
        let pool = self.kv.pool();
        for index in 0..pool.total() {
            let block = BlockId(index as u32);
            let held = holders.get(&block).copied().unwrap_or(0);
            if held != pool.refs(block) {
                return Err(format!("{block:?} has {held} holders and {} references", pool.refs(block)));
            }
        }
        let promised: usize = self.seqs.values().map(|seq| seq.promised).sum();
        let quarantined: usize = self.quarantine.values().map(Vec::len).sum();
        let writable: usize = self
            .requests
            .values()
            .filter_map(|request| request.transfer.as_ref())
            .map(|transfer| transfer.writable().count())
            .sum();
        let counted = (promised, quarantined, writable);
        let kept = (pool.promised(), pool.quarantined(), pool.granted());
        if counted != kept {
            return Err(format!("promised, quarantined, granted: counted {counted:?}, kept {kept:?}"));
        }
        Ok(())
    }

    /// The blocks that a sequence writes next are in no other table. (A pending copy may read one: it
    /// comes before the next write.)
    fn check_writers(&self) -> Result<(), String> {
        let copies = || self.copies.iter().chain(self.in_flight.iter().flat_map(|step| &step.copies));
        for seq in self.seqs.values().filter(|seq| seq.phase != Phase::Ended) {
            for block in seq.table.iter().skip(seq.computed / self.config.block_size) {
                let readers = copies().filter(|pending| pending.copy.from == *block).count();
                let holders = self.kv.pool().refs(*block) as usize - readers;
                if holders != 1 || self.kv.pool().is_cached(*block) {
                    return Err(format!("{:?} would write {block:?}, which is not its own", seq.id));
                }
            }
        }
        Ok(())
    }

    /// A copy that has not begun is wanted: it fills a block of its sequence's table.
    fn check_copies(&self) -> Result<(), String> {
        for pending in &self.copies {
            let table = self.seqs.get(&pending.seq).map(|seq| &seq.table);
            if !table.is_some_and(|table| table.contains(&pending.copy.to)) {
                return Err(format!("{:?} is for nobody", pending.copy));
            }
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<(), String> {
        let mut seats = 0;
        for seq in self.seqs.values() {
            let queued = match seq.phase {
                Phase::Waiting => self.waiting.get(&seq.rank.place()) == Some(&seq.id),
                Phase::Running => self.running.get(&seq.rank) == Some(&seq.id),
                Phase::Landing | Phase::Held | Phase::Ended => true,
            };
            if !queued {
                return Err(format!("{:?} is {:?} and not in its queue", seq.id, seq.phase));
            }
            if seq.phase == Phase::Waiting && (!seq.table.is_empty() || seq.promised > 0) {
                return Err(format!("{:?} waits and holds blocks", seq.id));
            }
            if matches!(seq.phase, Phase::Running | Phase::Landing) {
                seats += seq.choices.len();
            }
            if seq.cached > seq.computed / self.config.block_size {
                return Err(format!("{:?} has cached blocks that are not computed", seq.id));
            }
        }
        let phase = |wanted| self.seqs.values().filter(|seq| seq.phase == wanted).count();
        let queues = (phase(Phase::Waiting), phase(Phase::Running), seats);
        if queues != (self.waiting.len(), self.running.len(), self.seats) {
            return Err(format!("waiting, running, seats: counted {queues:?}"));
        }
        if self.seats > self.config.max_running {
            return Err(format!("{} seats are more than allowed", self.seats));
        }
        let pinned = self.requests.values().map(|request| request.source);
        let ungranted: usize = pinned.filter(|source| !source.granted).map(|source| source.pinned).sum();
        if ungranted != self.ungranted {
            return Err(format!("{ungranted} ungranted blocks, kept {}", self.ungranted));
        }
        let live = self.requests.values().filter(|request| !request.ended).count();
        if live != self.reservations.in_flight() {
            return Err(format!("{live} requests, {} reservations", self.reservations.in_flight()));
        }
        Ok(())
    }
}
