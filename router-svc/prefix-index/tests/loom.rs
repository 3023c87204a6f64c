//! Readers beside a writer under a weak memory model: every interleaving and every value that C11 lets a load see.
//!
//! [`epochs`] and [`published`] are the crate's own files, compiled against the model's atomics in place of those of the machine.
#![allow(clippy::unwrap_used, clippy::arc_with_non_send_sync, dead_code, unreachable_pub)]

mod sync {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

    pub(crate) const STRIPES: usize = 1;

    pub(crate) fn stripe() -> usize {
        0
    }

    pub(crate) fn fence_after_update() {
        fence(Ordering::SeqCst);
    }
}

#[path = "../src/epochs.rs"]
mod epochs;
#[path = "../src/published.rs"]
mod published;
#[path = "../src/size.rs"]
mod size;

use std::sync::Arc;

use epochs::Epochs;
use loom::cell::UnsafeCell;
use loom::thread;
use published::Published;
use sync::{AtomicU64, Ordering};

/// What a reader sees. The cell makes the model watch looks at it against the end of its life.
#[repr(align(64))]
struct Content {
    number: u64,
    life: Arc<UnsafeCell<()>>,
}

impl Content {
    fn boxed(number: u64) -> Box<[Self]> {
        Box::new([Self { number, life: Arc::new(UnsafeCell::new(())) }])
    }

    fn number(&self) -> u64 {
        self.life.with(|_| self.number)
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.life.with_mut(|_| ());
    }
}

struct Shared {
    epochs: Epochs,
    place: Published<Content>,
    word: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { epochs: Epochs::new(), place: Published::empty(), word: AtomicU64::new(0) })
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A table is replaced and the old one freed while a reader reads twice.
#[test]
fn what_a_pin_has_seen_outlives_it() {
    check(2, || {
        let shared = Shared::new();
        shared.place.fill(Content::boxed(1));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut before = 0;
                for _ in 0..2 {
                    let pin = shared.epochs.pin();
                    let seen = shared.place.read(&pin)[0].number();
                    assert!(seen >= before && (1..=3).contains(&seen));
                    before = seen;
                }
            })
        };
        let mut unlinked = Vec::new();
        for number in 2..=3 {
            unlinked.push(shared.place.publish(Some(Content::boxed(number)), &shared.epochs));
            for _ in 0..3 {
                shared.epochs.advance();
            }
            unlinked = unlinked.into_iter().filter_map(|old| old.free(&shared.epochs).err()).collect();
        }
        reader.join().unwrap();
        for _ in 0..3 {
            shared.epochs.advance();
        }
        for old in unlinked {
            assert!(old.free(&shared.epochs).is_ok(), "without readers everything is freed");
        }
    });
}

/// Somebody else advances the epoch between the unlinking and its mark.
#[test]
fn another_writers_advances_free_nothing_early() {
    check(4, || {
        let shared = Shared::new();
        shared.place.fill(Content::boxed(1));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let pin = shared.epochs.pin();
                assert!(shared.place.read(&pin)[0].number() >= 1);
            })
        };
        let advancing = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.epochs.advance();
                shared.epochs.advance();
            })
        };
        let old = shared.place.publish(Some(Content::boxed(2)), &shared.epochs);
        shared.epochs.advance();
        let old = old.free(&shared.epochs);
        reader.join().unwrap();
        advancing.join().unwrap();
        if let Err(old) = old {
            old.free_at_the_end();
        }
    });
}

/// A set ends and its number is used again: whoever reads the number from a word finds the set that the word means.
#[test]
fn a_number_means_one_set_for_as_long_as_it_can_be_read() {
    check(2, || {
        let shared = Shared::new();
        shared.place.fill(Content::boxed(1));
        shared.word.store(1, Ordering::Release);
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let pin = shared.epochs.pin();
                    let named = shared.word.load(Ordering::Acquire);
                    if named != 0 {
                        assert_eq!(shared.place.read(&pin)[0].number(), named);
                    }
                }
            })
        };
        shared.word.store(0, Ordering::Release);
        let mark = shared.epochs.mark();
        for _ in 0..3 {
            shared.epochs.advance();
        }
        if shared.place.reclaim(mark, &shared.epochs) {
            shared.place.fill(Content::boxed(2));
            shared.word.store(2, Ordering::Release);
        }
        reader.join().unwrap();
    });
}
