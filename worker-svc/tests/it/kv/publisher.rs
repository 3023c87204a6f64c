//! The publisher against a store that refuses, loses answers, is emptied and forgets what came last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use armature_worker::domain::kv_publisher::{LogRange, Outcome, Publisher, Step};
use armature_worker::domain::time::Time;
use proptest::prelude::*;

/// Batches that the log keeps.
const RING: u64 = 16;

/// What one rank has in the store. Everything written is this incarnation's.
#[derive(Debug, Clone, Default)]
struct Store {
    batches: BTreeSet<u64>,
    /// Greatest id that the stream ever had.
    last: u64,
    pointers: Vec<u64>,
    chunks: BTreeMap<u64, u32>,
}

impl Store {
    /// Chunks of a snapshot at `at`: sometimes one, sometimes more.
    fn chunks_of(at: u64) -> u32 {
        (at % 3 + 1) as u32
    }

    fn run(&mut self, step: &Step, last: u64) -> Outcome {
        match step {
            Step::Wait => Outcome::Done,
            Step::Look => {
                Outcome::Looked { last: self.batches.last().copied(), snapshots: self.pointers.clone() }
            }
            Step::Compare { number } => Outcome::Compared(Some(self.batches.contains(number))),
            Step::Append { number, .. } if *number <= self.last => Outcome::NotGreater,
            Step::Append { number, renew } => {
                self.batches.insert(*number);
                self.last = *number;
                let there = |at: &u64| self.chunks.contains_key(at) && self.pointers.contains(at);
                let renewed = renew.as_ref().is_none_or(|snapshots| snapshots.first().is_none_or(there));
                Outcome::Appended { changes: 2_000, renewed }
            }
            Step::TakeSnapshot => {
                let at = last;
                Outcome::Taken { at, chunks: Self::chunks_of(at), blocks: 100 }
            }
            Step::Chunk { at, chunk } => {
                let held = self.chunks.entry(*at).or_default();
                *held = (*held).max(chunk + 1);
                Outcome::Done
            }
            Step::Point { at } if self.pointers.first().is_some_and(|newest| newest >= at) => {
                Outcome::NotGreater
            }
            Step::Point { at } => {
                self.pointers.insert(0, *at);
                self.pointers.truncate(2);
                Outcome::Done
            }
            Step::Tidy { drop, below } => {
                drop.iter().for_each(|at| _ = self.chunks.remove(at));
                if let Some(below) = below {
                    self.batches = self.batches.split_off(below);
                }
                Outcome::Done
            }
            Step::Clear => {
                self.batches.clear();
                self.pointers.clear();
                self.last = 0;
                Outcome::Done
            }
        }
    }

    /// A router that starts now finds a whole snapshot and every batch behind it.
    fn serves(&self) -> Result<(), String> {
        let Some(newest) = self.pointers.first() else { return Ok(()) };
        for pointer in &self.pointers {
            if self.chunks.get(pointer) != Some(&Self::chunks_of(*pointer)) {
                return Err(format!("the snapshot at {pointer} is not whole: {self:?}"));
            }
        }
        let behind: Vec<u64> = self.batches.range(newest + 1..).copied().collect();
        let whole: Vec<u64> = (newest + 1..).take(behind.len()).collect();
        if behind == whole { Ok(()) } else { Err(format!("a hole behind {newest}: {behind:?}")) }
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// The log cuts batches.
    Cut(u64),
    /// Steps succeed.
    Steps(usize),
    Refused,
    LostUndone,
    LostDone,
    Emptied,
    /// A copy that lacks what came last takes over.
    Older,
    /// It is copied.
    Copied,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1u64..6).prop_map(Event::Cut),
        1 => (10u64..40).prop_map(Event::Cut),
        8 => (1usize..8).prop_map(Event::Steps),
        2 => Just(Event::Refused),
        2 => Just(Event::LostUndone),
        2 => Just(Event::LostDone),
        1 => Just(Event::Emptied),
        1 => Just(Event::Older),
        2 => Just(Event::Copied),
    ];
    prop::collection::vec(event, 1..120)
}

struct Rig {
    publisher: Publisher,
    store: Store,
    last: u64,
    now: Time,
}

impl Rig {
    fn step(&mut self) -> Step {
        self.now = self.now + Duration::from_millis(700);
        let first = (self.last + 1).saturating_sub(RING).max(1);
        self.publisher.step(LogRange { first, last: self.last }, self.now)
    }

    fn succeed(&mut self) -> Step {
        let step = self.step();
        if step != Step::Wait {
            // A snapshot is at batch 1 or later: taking it cuts that.
            self.last = self.last.max(u64::from(step == Step::TakeSnapshot));
            let outcome = self.store.run(&step, self.last);
            self.publisher.done(&step, outcome, self.now);
        }
        step
    }
}

proptest! {
    #[test]
    fn whatever_happens_to_the_store_readers_find_it_whole_in_the_end(events in events()) {
        let mut rig =
            Rig { publisher: Publisher::new(), store: Store::default(), last: 0, now: Time::ZERO };
        let mut copy = Store::default();
        let mut disturbed = false;
        for event in events {
            match event {
                Event::Cut(batches) => rig.last += batches,
                Event::Steps(steps) => (0..steps).for_each(|_| _ = rig.succeed()),
                Event::Refused | Event::LostUndone | Event::LostDone => {
                    let step = rig.step();
                    if step == Step::Wait {
                        continue;
                    }
                    if matches!(event, Event::LostDone) {
                        rig.store.run(&step, rig.last);
                    }
                    let local = matches!(step, Step::TakeSnapshot);
                    let outcome = if matches!(event, Event::Refused) { Outcome::Refused } else { Outcome::Lost };
                    if !local {
                        rig.publisher.done(&step, outcome, rig.now);
                    }
                }
                Event::Emptied => (rig.store, disturbed) = (Store::default(), true),
                Event::Older => (rig.store, disturbed) = (copy.clone(), true),
                Event::Copied => copy = rig.store.clone(),
            }
            if matches!(event, Event::Emptied | Event::Older) {
                // The connection breaks with it.
                let step = rig.step();
                rig.publisher.done(&step, Outcome::Lost, rig.now);
            }
            // Before the store has lost anything it serves at every moment.
            if !disturbed {
                prop_assert_eq!(rig.store.serves(), Ok(()));
            }
        }
        rig.last += 1;
        let steps = (0..200).take_while(|_| rig.succeed() != Step::Wait).count();
        prop_assert!(steps < 200, "it does not come to rest: {:?}", rig.publisher);
        prop_assert_eq!(rig.publisher.acknowledged(), rig.last);
        prop_assert_eq!(rig.store.serves(), Ok(()));
        let reached = rig.store.batches.last().copied().max(rig.store.pointers.first().copied());
        prop_assert_eq!(reached, Some(rig.last));
        prop_assert!(rig.store.chunks.len() <= 2 + 8, "snapshots pile up: {:?}", rig.store.chunks);
    }
}

#[test]
fn a_batch_refused_as_not_greater_is_done_only_when_it_is_this_one() {
    let range = LogRange { first: 1, last: 3 };
    let mut rig = Rig { publisher: Publisher::new(), store: Store::default(), last: 2, now: Time::ZERO };
    while rig.succeed() != Step::Wait {}
    let (append, now) = (Step::Append { number: 3, renew: None }, rig.now);
    for (ours, next) in [(Some(true), Step::Wait), (Some(false), Step::Clear), (None, Step::TakeSnapshot)] {
        let mut publisher = rig.publisher.clone();
        publisher.done(&append, Outcome::NotGreater, now);
        let compare = publisher.step(range, now);
        assert_eq!(compare, Step::Compare { number: 3 });
        publisher.done(&compare, Outcome::Compared(ours), now);
        assert_eq!(publisher.step(range, now), next);
    }
}

#[test]
fn a_publisher_that_fell_out_of_the_ring_writes_a_snapshot() {
    let mut rig = Rig { publisher: Publisher::new(), store: Store::default(), last: 1, now: Time::ZERO };
    while rig.succeed() != Step::Wait {}
    rig.last = 2 + RING;
    assert_eq!(rig.step(), Step::TakeSnapshot);
    while rig.succeed() != Step::Wait {}
    assert_eq!(rig.store.pointers, [2 + RING, 1]);
}
