//! The KV pool with its prefix cache and its event log: blocks are taken, shared, cached and given
//! back here, so that the three never disagree.

use std::sync::Arc;

use crate::domain::ids::BlockId;
use crate::domain::kv_events::{KvEvents, KvEventsConfig, SequenceHash, Tier};
use crate::domain::pool::{BlockPool, Released};
use crate::domain::prefix_cache::{Eviction, Inserted, PrefixCache};
use crate::domain::request::CacheRoot;
use crate::domain::time::Time;

/// Pool, cache and events of one worker.
#[derive(Debug)]
pub struct KvStore {
    pool: BlockPool,
    cache: PrefixCache,
    events: KvEvents,
    block_size: usize,
}

impl KvStore {
    /// An empty store.
    pub fn new(blocks: usize, block_size: usize, eviction: Eviction, events: KvEventsConfig) -> Self {
        Self {
            pool: BlockPool::new(blocks),
            cache: PrefixCache::new(blocks, eviction),
            events: KvEvents::new(events),
            block_size,
        }
    }

    /// The books of the pool.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }
    /// The prefix cache.
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }
    /// The event log.
    pub fn events(&mut self) -> &mut KvEvents {
        &mut self.events
    }
    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }
    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// The cached blocks of the longest prefix of `tokens`, at most `most`; see
    /// [`PrefixCache::longest_prefix`].
    pub fn longest_prefix(
        &self,
        root: &CacheRoot,
        tokens: impl Iterator<Item = u32>,
        most: usize,
    ) -> Vec<BlockId> {
        self.cache.longest_prefix(root, tokens, self.block_size, most)
    }

    /// Holds the `matched` blocks and promises `fresh` more. False, and nothing changed, when that would
    /// leave fewer than `headroom` blocks available: a matched block that was idle is one less to promise.
    #[must_use]
    pub fn reserve(
        &mut self,
        matched: &[BlockId],
        fresh: usize,
        headroom: usize,
        hit: bool,
        now: Time,
    ) -> bool {
        let idle = matched.iter().filter(|block| self.pool.refs(**block) == 0).count();
        if self.pool.available() < fresh + idle + headroom {
            return false;
        }
        for block in matched {
            self.hold(*block, hit, now);
        }
        self.pool.promise(fresh)
    }

    fn hold(&mut self, block: BlockId, hit: bool, now: Time) {
        self.pool.retain(block);
        if self.pool.is_cached(block) {
            self.cache.hold(block, hit, now);
        }
    }

    /// One more holder of a held block.
    pub fn share(&mut self, block: BlockId) {
        debug_assert!(self.pool.refs(block) > 0, "only a held block is shared");
        self.pool.retain(block);
    }

    /// Takes a block out of a promise.
    pub fn take_promised(&mut self, now: Time) -> BlockId {
        self.pool.unpromise(1);
        self.take_or_evict(now).expect("free and idle blocks cover every promise")
    }

    /// Takes a block that is promised to nobody.
    pub fn take(&mut self, now: Time) -> Option<BlockId> {
        if self.pool.available() == 0 { None } else { self.take_or_evict(now) }
    }

    fn take_or_evict(&mut self, now: Time) -> Option<BlockId> {
        if self.pool.free() == 0 {
            let (victim, hash) = self.cache.evict(now)?;
            self.events.removed(hash, Tier::DEVICE, now);
            self.pool.evict(victim);
        }
        self.pool.take()
    }

    /// Drops a promise of `count` blocks.
    pub fn unpromise(&mut self, count: usize) {
        self.pool.unpromise(count);
    }

    /// One holder less.
    pub fn release(&mut self, block: BlockId, now: Time) {
        if self.pool.release(block) == Released::Idle {
            self.cache.idle(block, now);
        }
    }

    /// Offers a complete, held block to the cache as the content of `tokens` below `parent`, which is
    /// held as well.
    pub fn cache_block(
        &mut self,
        root: &Arc<CacheRoot>,
        parent: Option<BlockId>,
        tokens: Arc<[u32]>,
        block: BlockId,
        hash: SequenceHash,
        now: Time,
    ) -> Inserted {
        let inserted = self.cache.insert(root, parent, tokens, block, hash, now);
        if inserted == Inserted::New {
            self.pool.cache(block);
            self.events.stored(hash, Tier::DEVICE, now);
        }
        inserted
    }

    /// Replaces a holder's `own` complete block by the cached block of equal content.
    pub fn merge(&mut self, own: BlockId, cached: BlockId, now: Time) {
        self.hold(cached, true, now);
        self.release(own, now);
    }

    /// Lets a transfer write a block that the caller has just taken.
    pub fn grant(&mut self, block: BlockId) {
        self.pool.grant(block);
    }
    /// The transfer is done with the block.
    pub fn land(&mut self, block: BlockId) {
        self.pool.land(block);
    }
    /// The block is given up while it may still be written.
    pub fn quarantine(&mut self, block: BlockId) {
        self.pool.quarantine(block);
    }
    /// No write can arrive any more.
    pub fn release_quarantined(&mut self, block: BlockId) {
        self.pool.release_quarantined(block);
    }

    /// Verifies pool, cache, and that they agree with each other and with the event log.
    ///
    /// # Errors
    /// Names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        self.cache.check()?;
        let mut hashes = std::collections::BTreeSet::new();
        let mut idle = 0;
        for (block, hash) in self.cache.entries() {
            hashes.insert(hash);
            idle += usize::from(self.cache.is_idle(block));
            if !self.pool.is_cached(block) || self.cache.is_idle(block) != (self.pool.refs(block) == 0) {
                return Err(format!("pool and cache disagree on {block:?}"));
            }
        }
        if idle != self.pool.idle() || hashes.len() != self.events.present() {
            return Err(format!("{idle} idle entries, {} hashes do not match pool and events", hashes.len()));
        }
        Ok(())
    }
}
