//! Block accounting of the KV pool: who may read or write which block, and what is promised to whom.
//!
//! Every block is in exactly one of four states:
//!
//! ```text
//!            take                      release, not cached
//!   FREE ------------> ACTIVE (refs > 0) ------------> FREE
//!    ^                  |      ^    |
//!    |       quarantine |      |    | release, cached
//!    | release          v      |    v
//!    +---------- QUARANTINED   +-- IDLE (cached, refs = 0) --evict--> FREE
//!                           retain
//! ```
//!
//! A promise is a count against the blocks that are free or idle and not yet promised, so that it can
//! be kept at any later time: `free + idle >= promised`.

use crate::domain::ids::BlockId;

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    refs: u32,
    cached: bool,
    granted: bool,
    quarantined: bool,
}

/// What became of a block whose reference was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// Others hold it.
    Shared,
    /// Nobody holds it; it stays in the prefix cache.
    Idle,
    /// Nobody holds it and it has no content.
    Free,
}

/// The pool's books. Bounded by the number of blocks.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    idle: usize,
    promised: usize,
    granted: usize,
    quarantined: usize,
}

impl BlockPool {
    /// A pool of `blocks` free blocks.
    pub fn new(blocks: usize) -> Self {
        let ids = (0..blocks).rev().filter_map(|index| u32::try_from(index).ok()).map(BlockId);
        Self {
            blocks: vec![Block::default(); blocks],
            free: ids.collect(),
            idle: 0,
            promised: 0,
            granted: 0,
            quarantined: 0,
        }
    }

    /// Blocks of the pool.
    pub fn total(&self) -> usize {
        self.blocks.len()
    }
    /// Blocks without content.
    pub fn free(&self) -> usize {
        self.free.len()
    }
    /// Cached blocks that nobody holds.
    pub fn idle(&self) -> usize {
        self.idle
    }
    /// Blocks that somebody holds, each once.
    pub fn active(&self) -> usize {
        self.blocks.len() - self.free.len() - self.idle - self.quarantined
    }
    /// Blocks promised and not yet taken.
    pub fn promised(&self) -> usize {
        self.promised
    }
    /// Blocks granted to transfers and not yet landed.
    pub fn granted(&self) -> usize {
        self.granted
    }
    /// Blocks that a broken transfer may still write.
    pub fn quarantined(&self) -> usize {
        self.quarantined
    }
    /// Blocks that can be promised or taken without a promise.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle - self.promised
    }
    /// References to a block.
    pub fn refs(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].refs
    }
    /// Whether the block is in the prefix cache.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.blocks[block.index()].cached
    }

    /// Promises `count` blocks. False, and nothing changed, when they are not available.
    #[must_use]
    pub fn promise(&mut self, count: usize) -> bool {
        let kept = count <= self.available();
        if kept {
            self.promised += count;
        }
        kept
    }

    /// Takes back a promise of `count` blocks, to use or to drop it.
    pub fn unpromise(&mut self, count: usize) {
        debug_assert!(count <= self.promised, "only what is promised is taken back");
        self.promised = self.promised.saturating_sub(count);
    }

    /// Takes a free block, if there is one: the taker is its only holder.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.blocks[block.index()].refs = 1;
        Some(block)
    }

    /// One more holder of a block that is active or idle.
    pub fn retain(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.refs > 0 || state.cached, "a free block has nothing to hold");
        if state.refs == 0 {
            self.idle -= 1;
        }
        state.refs += 1;
    }

    /// One holder less.
    pub fn release(&mut self, block: BlockId) -> Released {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.refs > 0, "only a held block is released");
        debug_assert!(!state.granted, "a granted block lands or goes to quarantine");
        state.refs -= 1;
        match (state.refs, state.cached) {
            (0, true) => {
                self.idle += 1;
                Released::Idle
            }
            (0, false) => {
                self.free.push(block);
                Released::Free
            }
            _ => Released::Shared,
        }
    }

    /// A held block becomes part of the prefix cache.
    pub fn cache(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.refs > 0 && !state.granted && !state.cached, "cached once, when complete");
        state.cached = true;
    }

    /// An idle block leaves the prefix cache and is free.
    pub fn evict(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.refs == 0 && state.cached, "only an idle block is evicted");
        state.cached = false;
        self.idle -= 1;
        self.free.push(block);
    }

    /// The block's only holder lets a transfer write it.
    pub fn grant(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.refs == 1 && !state.cached && !state.granted, "a granted block has one writer");
        state.granted = true;
        self.granted += 1;
    }

    /// The transfer has written the block and never will again.
    pub fn land(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.granted, "only a granted block lands");
        state.granted = false;
        self.granted -= 1;
    }

    /// The holder gives up a granted block that may still be written.
    pub fn quarantine(&mut self, block: BlockId) {
        self.land(block);
        let state = &mut self.blocks[block.index()];
        debug_assert_eq!(state.refs, 1, "a granted block has one holder");
        state.refs = 0;
        state.quarantined = true;
        self.quarantined += 1;
    }

    /// No write can arrive at the block any more.
    pub fn release_quarantined(&mut self, block: BlockId) {
        let state = &mut self.blocks[block.index()];
        debug_assert!(state.quarantined, "only a quarantined block leaves quarantine");
        state.quarantined = false;
        self.quarantined -= 1;
        self.free.push(block);
    }

    /// Recounts everything from the blocks.
    ///
    /// # Errors
    /// Names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut free = vec![false; self.blocks.len()];
        for block in &self.free {
            if std::mem::replace(&mut free[block.index()], true) {
                return Err(format!("{block:?} is free twice"));
            }
        }
        let (mut idle, mut granted, mut quarantined) = (0, 0, 0);
        for (index, block) in self.blocks.iter().enumerate() {
            let is_idle = block.refs == 0 && block.cached;
            let states = [free[index], block.refs > 0, is_idle, block.quarantined];
            if states.iter().filter(|state| **state).count() != 1 {
                return Err(format!("block {index} is not in exactly one state: {block:?}"));
            }
            if block.granted && (block.refs != 1 || block.cached) {
                return Err(format!("granted block {index} has not one writer: {block:?}"));
            }
            idle += usize::from(is_idle);
            granted += usize::from(block.granted);
            quarantined += usize::from(block.quarantined);
        }
        let counted = (idle, granted, quarantined);
        if counted != (self.idle, self.granted, self.quarantined) {
            return Err(format!("counters drifted: counted {counted:?}, kept {self:?}"));
        }
        if self.promised > self.free.len() + self.idle {
            return Err(format!("{} blocks promised of {}", self.promised, self.free.len() + self.idle));
        }
        Ok(())
    }
}
