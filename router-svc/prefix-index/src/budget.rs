//! The byte budget: memory is reserved before it is allocated, and released after it is freed.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes, and how many there may be.
pub(crate) struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    /// With `used` bytes taken from the start.
    pub(crate) fn new(max: usize, used: usize) -> Self {
        Self { used: AtomicUsize::new(used), max }
    }

    /// Takes so many bytes; false when they are not there.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        self.reserve_below(bytes, self.max)
    }

    fn reserve_below(&self, bytes: usize, limit: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// The same for a table: the last sixteenth is kept for sets, which end as blocks are forgotten, while tables stay as large as they are.
    pub(crate) fn reserve_for_tables(&self, bytes: usize) -> bool {
        self.reserve_below(bytes, self.max - self.max / 16)
    }

    /// Gives bytes back.
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}
