//! The KV event log: what this worker's cache holds, told as numbered batches of changes.
//!
//! The state is a set of (sequence hash, tier). `stored` is said when an entry becomes present,
//! `removed` when it becomes absent; changes that undo each other before their batch is cut are
//! never said. Batches are numbered 1, 2, 3... per incarnation and carry the set's count and digest
//! after them, so that a reader sees a hole or a divergence:
//! `digest = sum mod 2^64 over the set of XXH3-64(seed 0, LE64(hash) ‖ tier byte)`; empty set = 0.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::time::Time;

/// Hash of a sequence's tokens up to the end of a block: a wire value that labels, and never decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceHash(pub u64);

/// Where a block lives: the number of the wire's `Tier` enum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tier(pub u8);

impl Tier {
    /// The memory that the engine computes in.
    pub const DEVICE: Self = Self(1);
}

/// An entry of the set.
pub type KvEntry = (SequenceHash, Tier);

/// Bounds of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// A change waits at most this long for others.
    pub max_delay: Duration,
    /// A batch is cut at this many bytes of entries, nine each.
    pub max_bytes: usize,
    /// An idle log cuts an empty batch this often, so that a lost last batch shows.
    pub heartbeat: Duration,
    /// Batches kept for readers that resume.
    pub ring: usize,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            max_delay: Duration::from_millis(50),
            max_bytes: 64 * 1024,
            heartbeat: Duration::from_secs(30),
            ring: 256,
        }
    }
}

/// Bytes of one entry on the wire: hash and tier.
const ENTRY_BYTES: usize = 9;

/// A numbered batch of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBatch {
    /// Counts from 1 in this incarnation.
    pub number: u64,
    /// Entries that became present, parents before children.
    pub stored: Vec<KvEntry>,
    /// Entries that became absent.
    pub removed: Vec<KvEntry>,
    /// Entries of the set after this batch.
    pub count: u64,
    /// Digest of the set after this batch.
    pub digest: u64,
}

/// What the set is after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvState {
    /// Its number; 0 before the first.
    pub batch: u64,
    /// Entries.
    pub count: u64,
    /// Their digest.
    pub digest: u64,
}

/// The whole set exactly at a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSnapshot {
    /// Number of the last batch it contains; 0 before the first.
    pub at: u64,
    /// The entries, sorted.
    pub entries: Vec<KvEntry>,
    /// Their digest.
    pub digest: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Stored,
    Removed,
}

/// An entry of the set: how many blocks carry it, and its place in the order in which entries came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Present {
    blocks: u32,
    since: u64,
}

/// The log of the present incarnation. Its set is as large as the tiers behind it; pending changes are
/// bounded by the set before and after them.
#[derive(Debug)]
pub struct KvEvents {
    config: KvEventsConfig,
    /// How many blocks carry an entry: equal hashes of unequal tokens are one entry of the set.
    present: HashMap<KvEntry, Present>,
    pending: HashMap<KvEntry, (u64, Change)>,
    /// Pending changes in the order in which they happened.
    order: BTreeMap<u64, KvEntry>,
    next_order: u64,
    pending_since: Time,
    last_batch_at: Time,
    number: u64,
    count: u64,
    digest: u64,
    ring: VecDeque<Arc<KvBatch>>,
}

impl KvEvents {
    /// An empty set, no batch cut.
    pub fn new(config: KvEventsConfig) -> Self {
        Self {
            config,
            present: HashMap::new(),
            pending: HashMap::new(),
            order: BTreeMap::new(),
            next_order: 0,
            pending_since: Time::ZERO,
            last_batch_at: Time::ZERO,
            number: 0,
            count: 0,
            digest: 0,
            ring: VecDeque::new(),
        }
    }

    /// A block with this entry came to be.
    pub fn stored(&mut self, hash: SequenceHash, tier: Tier, now: Time) {
        let entry = (hash, tier);
        let new = Present { blocks: 0, since: self.next_order };
        let present = self.present.entry(entry).or_insert(new);
        present.blocks += 1;
        if present.blocks == 1 {
            self.record(entry, Change::Stored, now);
        }
    }

    /// A block with this entry is gone. Unknown entries are ignored.
    pub fn removed(&mut self, hash: SequenceHash, tier: Tier, now: Time) {
        let entry = (hash, tier);
        if let Entry::Occupied(mut present) = self.present.entry(entry) {
            present.get_mut().blocks -= 1;
            if present.get().blocks == 0 {
                present.remove();
                self.record(entry, Change::Removed, now);
            }
        }
    }

    /// A new incarnation begins: batches are numbered from 1 again, and the first of them tell the whole set to readers that know
    /// nothing of it.
    pub fn begin_anew(&mut self, now: Time) {
        let mut entries: Vec<(u64, KvEntry)> =
            self.present.iter().map(|(entry, present)| (present.since, *entry)).collect();
        entries.sort_unstable();
        (self.number, self.count, self.digest) = (0, 0, 0);
        self.ring.clear();
        self.pending.clear();
        self.order.clear();
        (self.pending_since, self.last_batch_at) = (now, now);
        for (_, entry) in entries {
            self.record(entry, Change::Stored, now);
        }
    }

    fn record(&mut self, entry: KvEntry, change: Change, now: Time) {
        self.next_order += 1;
        if let Some((order, pending)) = self.pending.remove(&entry) {
            debug_assert_ne!(pending, change, "an entry alternates");
            self.order.remove(&order);
            return;
        }
        if self.pending.is_empty() {
            self.pending_since = now;
        }
        self.pending.insert(entry, (self.next_order, change));
        self.order.insert(self.next_order, entry);
    }

    /// The next batch, when one is due: enough bytes wait, a change has waited long enough, or the
    /// log was idle for the heartbeat. Call until it answers `None`.
    pub fn poll(&mut self, now: Time) -> Option<Arc<KvBatch>> {
        let full = self.order.len() * ENTRY_BYTES >= self.config.max_bytes;
        let waited = !self.order.is_empty() && now.since(self.pending_since) >= self.config.max_delay;
        let idle = now.since(self.last_batch_at) >= self.config.heartbeat;
        (full || waited || idle).then(|| self.cut(now))
    }

    /// When [`poll`](Self::poll) has something to give at the latest, if nothing else happens.
    pub fn next_due(&self) -> Time {
        let heartbeat = self.last_batch_at + self.config.heartbeat;
        if self.order.is_empty() {
            heartbeat
        } else {
            heartbeat.min(self.pending_since + self.config.max_delay)
        }
    }

    fn cut(&mut self, now: Time) -> Arc<KvBatch> {
        let (mut stored, mut removed) = (Vec::new(), Vec::new());
        let most = (self.config.max_bytes / ENTRY_BYTES).max(1);
        while stored.len() + removed.len() < most {
            let Some((_, entry)) = self.order.pop_first() else { break };
            let digest = armature_kv_hash::block_digest(entry.0.0, entry.1.0);
            match self.pending.remove(&entry) {
                Some((_, Change::Stored)) => {
                    stored.push(entry);
                    self.count += 1;
                    self.digest = self.digest.wrapping_add(digest);
                }
                Some((_, Change::Removed)) => {
                    removed.push(entry);
                    self.count -= 1;
                    self.digest = self.digest.wrapping_sub(digest);
                }
                None => debug_assert!(false, "order and pending changes agree"),
            }
        }
        self.number += 1;
        self.last_batch_at = now;
        let batch = Arc::new(KvBatch {
            number: self.number,
            stored,
            removed,
            count: self.count,
            digest: self.digest,
        });
        self.ring.push_back(Arc::clone(&batch));
        while self.ring.len() > self.config.ring {
            self.ring.pop_front();
        }
        batch
    }

    /// The batches from number `from` on, when the ring still has them all; `None` asks for a snapshot.
    /// `from` one past the last batch is an empty list.
    pub fn resume(&self, from: u64) -> Option<Vec<Arc<KvBatch>>> {
        let first = self.first_batch();
        if from < first || from > self.number + 1 {
            return None;
        }
        Some(self.ring.iter().skip((from - first) as usize).cloned().collect())
    }

    /// The set exactly at a batch. Pending changes are cut first: batches that other readers have
    /// to get as well come back beside it.
    pub fn snapshot(&mut self, now: Time) -> (KvSnapshot, Vec<Arc<KvBatch>>) {
        let mut batches = Vec::new();
        while !self.order.is_empty() {
            batches.push(self.cut(now));
        }
        let mut entries: Vec<KvEntry> = self.present.keys().copied().collect();
        entries.sort_unstable();
        (KvSnapshot { at: self.number, entries, digest: self.digest }, batches)
    }

    /// Cuts batch 1, be it empty, where none has been cut: a store beside the worker has no name for the time before it.
    pub fn begin(&mut self, now: Time) {
        if self.number == 0 {
            self.cut(now);
        }
    }

    /// Batch `number`, while the ring has it.
    pub fn batch(&self, number: u64) -> Option<Arc<KvBatch>> {
        let first = self.first_batch();
        (number >= first).then(|| self.ring.get((number - first) as usize).cloned()).flatten()
    }

    /// Number of the oldest batch that the ring has; one past the last when it is empty.
    pub fn first_batch(&self) -> u64 {
        self.number + 1 - self.ring.len() as u64
    }

    /// The set after the last batch.
    pub fn last_state(&self) -> KvState {
        KvState { batch: self.number, count: self.count, digest: self.digest }
    }

    /// Number of the last batch; 0 before the first.
    pub fn last_batch(&self) -> u64 {
        self.number
    }

    /// Entries of the set, pending changes included.
    pub fn present(&self) -> usize {
        self.present.len()
    }
}
