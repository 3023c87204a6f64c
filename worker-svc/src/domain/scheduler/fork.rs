//! Parting: choices that shared a prompt become sequences of their own.

use super::sequence::Phase;
use super::{BlockCopy, PendingCopy, Scheduler};
use crate::domain::ids::SeqId;
use crate::domain::time::Time;

impl Scheduler {
    /// `choice` leaves the sequence and goes on by itself after `token`. Full blocks of the prompt are
    /// shared; a partial tail is copied before the next pass. Without a block for the tail the choice
    /// waits and is computed again.
    pub(super) fn fork(&mut self, id: SeqId, choice: u32, token: u32, now: Time) {
        self.last_seq += 1;
        let fork_id = SeqId(self.last_seq);
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.choices.retain(|other| *other != choice);
        let block_size = self.config.block_size;
        let tokens = seq.len();
        // A block whose last slot is computed again by the sequence is not shared.
        let shared = seq.computed / block_size;
        let tail = tokens - shared * block_size;
        let mut fork = seq.fork(fork_id, choice, {
            let mut generated = seq.generated.clone();
            generated.push(token);
            generated
        });
        fork.phase = Phase::Waiting;
        let tail_block = if tail == 0 { None } else { self.kv.take(now) };
        if tail == 0 || tail_block.is_some() {
            fork.phase = Phase::Running;
            fork.computed = tokens;
            fork.cached = seq.cached.min(shared);
            fork.table = seq.table[..shared].to_vec();
            for block in &fork.table {
                self.kv.share(*block);
            }
            if let Some(to) = tail_block {
                let from = seq.table[shared];
                self.kv.share(from);
                fork.table.push(to);
                self.copies.push(PendingCopy { seq: fork_id, copy: BlockCopy { from, to, tokens: tail } });
            }
            self.running.insert(fork.rank, fork_id);
        } else {
            fork.cacheable = true;
            self.seats -= 1;
            self.waiting.insert(fork.rank.place(), fork_id);
        }
        if let Some(state) =
            self.requests.get_mut(&fork.request).and_then(|request| request.choices.get_mut(&choice))
        {
            state.seq = fork_id;
        }
        self.seqs.insert(fork_id, fork);
    }

    /// Forgets the copies that a sequence is waiting for: its blocks are given back.
    pub(super) fn drop_copies(&mut self, id: SeqId, now: Time) {
        let (dropped, kept) = std::mem::take(&mut self.copies).into_iter().partition(|copy| copy.seq == id);
        self.copies = kept;
        let dropped: Vec<PendingCopy> = dropped;
        for pending in dropped {
            self.kv.release(pending.copy.from, now);
        }
    }
}
