//! When memory that readers may still see can be reused.
//!
//! A reader counts itself in (one addition) before it reads and out afterwards: no lock, no retry, and no slot of its own that could run
//! out. There are two sets of counters; new readers use the one that the epoch names. The epoch advances when the other set has been seen
//! at zero, so a stream of new readers never holds it up.
//!
//! What was unlinked at epoch `e` is unreachable at `e + 3`. The first advance may have looked at its counters before the unlinking; the
//! next two looked at both sets after it. A reader that was counted by then has left; one that was not will find what replaced it,
//! because there is a full fence between the count and its reads, and one between the unlinking and the look at the counters.

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, STRIPES, fence, fence_after_update, stripe};

/// Advances after which nobody can see what was unlinked.
const GRACE: u64 = 3;

/// A counter that shares its cache lines with nothing.
#[repr(align(128))]
struct Counter(AtomicUsize);

/// Readers, counted.
pub(crate) struct Epochs {
    epoch: AtomicU64,
    readers: [[Counter; STRIPES]; 2],
    advancing: Mutex<()>,
}

/// While it lives, what was reachable at its making is not freed.
pub(crate) struct Pin<'a>(&'a AtomicUsize);

impl Epochs {
    pub(crate) fn new() -> Self {
        let set = || std::array::from_fn(|_| Counter(AtomicUsize::new(0)));
        Self { epoch: AtomicU64::new(0), readers: [set(), set()], advancing: Mutex::new(()) }
    }

    /// Counts a reader in. Wait-free.
    pub(crate) fn pin(&self) -> Pin<'_> {
        // An epoch read late only delays an advance.
        let set = self.epoch.load(Ordering::Relaxed) % 2;
        let counter = &self.readers[set as usize][stripe()].0;
        counter.fetch_add(1, Ordering::AcqRel);
        fence_after_update();
        Pin(counter)
    }

    /// The epoch at which something was unlinked just before.
    pub(crate) fn mark(&self) -> u64 {
        // A read-modify-write sees the latest epoch, and the advance that follows sees what came before it.
        self.epoch.fetch_add(0, Ordering::AcqRel)
    }

    /// Advances when nobody counts in the set that is not in use.
    pub(crate) fn advance(&self) {
        let Ok(_alone) = self.advancing.try_lock() else { return };
        let draining = (self.epoch.load(Ordering::Relaxed) + 1) % 2;
        fence(Ordering::SeqCst);
        if self.readers[draining as usize].iter().all(|counter| counter.0.load(Ordering::Acquire) == 0) {
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether nobody can see what was unlinked at `mark`.
    pub(crate) fn passed(&self, mark: u64) -> bool {
        self.epoch.load(Ordering::Acquire) >= mark + GRACE
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
