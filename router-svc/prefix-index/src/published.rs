//! Slices that one writer replaces under the eyes of many readers. The only file with unsafe code.
//!
//! A [`Published`] is one atomic word: the address of a slice whose elements are aligned to 64 bytes, and in the low six bits its length
//! class. A reader needs a [`Pin`]; what a pin has seen is freed only when [`Epochs::passed`] says that no such pin is left.
//!
//! The arguments below lean on three rules, which hold because all of this is private to the crate and an index has one [`Epochs`]:
//! pins, marks and `Published`s that meet belong to one index; an index is dropped only when nothing borrows it, so without pins; and
//! [`Published::reclaim`] is called only for slices that can no longer be reached by whoever begins to read.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;

use crate::epochs::{Epochs, Pin};
use crate::size::{class_of, size_of_class};
use crate::sync::{AtomicPtr, Ordering};

const ALIGN: usize = 64;

/// A slice, or nothing, that is replaced whole.
pub(crate) struct Published<T>(AtomicPtr<T>, PhantomData<Box<[T]>>);

/// A slice that was replaced, and may still be read.
pub(crate) struct Unlinked<T> {
    tagged: *mut T,
    mark: u64,
    owns: PhantomData<Box<[T]>>,
}

// SAFETY: it is the only owner of its slice; others only read, until it is freed after the last reader has left.
unsafe impl<T: Send + Sync> Send for Unlinked<T> {}

impl<T> Published<T> {
    pub(crate) fn empty() -> Self {
        const { assert!(align_of::<T>() >= ALIGN) };
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// The present slice.
    #[inline]
    pub(crate) fn read<'p>(&'p self, _pin: &'p Pin<'_>) -> &'p [T] {
        let tagged = self.0.load(Ordering::Acquire);
        if tagged.is_null() {
            return &[];
        }
        let (start, len) = untag(tagged);
        // SAFETY: a word that is not null was made by `tag` from a boxed slice of this class, and published with release after the slice
        // was written. It is freed by `Unlinked::free` or `reclaim` after every pin that could have loaded it has ended, and `_pin`
        // lives for `'p`. Nobody has it mutably.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Replaces the slice; its length must be that of a class, and none for an empty one.
    pub(crate) fn publish(&self, slice: Option<Box<[T]>>, epochs: &Epochs) -> Unlinked<T> {
        let tagged = slice.map_or(ptr::null_mut(), tag);
        let tagged = self.0.swap(tagged, Ordering::AcqRel);
        Unlinked { tagged, mark: epochs.mark(), owns: PhantomData }
    }

    /// Puts a slice where there is none.
    pub(crate) fn fill(&self, slice: Box<[T]>) {
        let before = self.0.swap(tag(slice), Ordering::AcqRel);
        assert!(before.is_null(), "a place is filled once");
    }

    /// Frees the slice, when nobody has been able to reach this place since `mark` and `epochs` has passed it. False: not yet.
    pub(crate) fn reclaim(&self, mark: u64, epochs: &Epochs) -> bool {
        if !epochs.passed(mark) {
            return false;
        }
        let tagged = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: as in `Unlinked::free`: who could reach it was pinned at `mark` or before, and has left.
        drop(unsafe { owned(tagged) });
        true
    }
}

impl<T> Unlinked<T> {
    /// Bytes it holds.
    pub(crate) fn bytes(&self) -> usize {
        if self.tagged.is_null() { 0 } else { untag(self.tagged).1 * size_of::<T>() }
    }

    /// Frees it if nobody can see it any more; otherwise gives it back.
    pub(crate) fn free(self, epochs: &Epochs) -> Result<(), Self> {
        if !epochs.passed(self.mark) {
            return Err(self);
        }
        // SAFETY: it was taken out of its place before `mark`, so only pins from before can have it, and they have ended. `self` is
        // consumed, so this happens once.
        drop(unsafe { owned(self.tagged) });
        Ok(())
    }

    /// Frees it because its index ends.
    pub(crate) fn free_at_the_end(self) {
        // SAFETY: called from the drop of what owns the index's slices: nothing borrows the index, so there are no pins.
        drop(unsafe { owned(self.tagged) });
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let tagged = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: `&mut self`: no reader borrows it, so no slice of it is in use.
        drop(unsafe { owned(tagged) });
    }
}

/// The word for a boxed slice.
fn tag<T>(slice: Box<[T]>) -> *mut T {
    let class = class_of(slice.len()).expect("a published slice has the length of a class");
    Box::into_raw(slice).cast::<T>().map_addr(|address| address | class)
}

#[inline]
fn untag<T>(tagged: *mut T) -> (*mut T, usize) {
    (tagged.map_addr(|address| address & !(ALIGN - 1)), size_of_class(tagged.addr() & (ALIGN - 1)))
}

/// Takes the boxed slice back.
///
/// # Safety
/// `tagged` is null or was made by `tag`; nobody reads the slice, and this is called once for it.
unsafe fn owned<T>(tagged: *mut T) -> Option<Box<[T]>> {
    if tagged.is_null() {
        return None;
    }
    let (start, len) = untag(tagged);
    // SAFETY: by the contract above these are the parts of a box that was given up by `Box::into_raw`.
    Some(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, len)) })
}

/// Asks for the cache line of a place that will be read soon.
#[inline]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it reads nothing, and the address is that of a reference.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
