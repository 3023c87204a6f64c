//! Atomics and the two places where a model checker needs its own.
//!
//! The tests of `tests/loom.rs` compile [`crate::epochs`] and [`crate::published`] against a twin of this file.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

/// Counters that readers spread over. More readers than counters share one.
pub(crate) const STRIPES: usize = 32;

/// This thread's counter: any will do, a thread keeps its own.
pub(crate) fn stripe() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    // A thread-local lies elsewhere for every thread; the upper bits differ, for each has pages of its own.
    HERE.with(|here| std::ptr::from_ref(here).addr() >> 12) % STRIPES
}

/// A full fence right after a read-modify-write.
pub(crate) fn fence_after_update() {
    if cfg!(target_arch = "x86_64") {
        // The locked instruction before it is a full fence; only the compiler needs to be told.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
