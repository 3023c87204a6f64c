//! What was routed and no report has settled yet.
//!
//! A reservation has a leg per worker. A leg ends by that worker's report naming it, by Release, by its admission deadline, or with its
//! worker; a decode worker's report ends the leg of a prefill worker that it did not use. Sums are whole numbers, so they come back to zero.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};

use super::units::{Blocks, Micros, SequenceHash, Side, Time, Tokens};

/// Load that a leg adds to its worker until it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Booking {
    /// Prompt tokens to compute.
    pub uncached: Tokens,
    /// Time for them.
    pub work: Micros,
    /// Blocks of the prompt.
    pub blocks: Blocks,
    /// Sequences that will run.
    pub requests: u32,
}

/// One worker's part of a reservation.
#[derive(Debug, Clone)]
pub struct Leg {
    /// Whose.
    pub worker: WorkerRank,
    /// Which part.
    pub side: Side,
    /// What it adds.
    pub booking: Booking,
    /// Blocks that the worker is expected to store.
    pub promised: Arc<[SequenceHash]>,
}

/// Unsettled load of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pending {
    /// Legs.
    pub legs: u32,
    /// Sum of their uncached tokens.
    pub uncached: Tokens,
    /// Sum of their work.
    pub work: Micros,
    /// Sum of their blocks.
    pub blocks: u64,
    /// Sum of their sequences.
    pub requests: u32,
}

impl Pending {
    fn add(&mut self, booking: Booking) {
        self.legs += 1;
        self.uncached.0 += booking.uncached.0;
        self.work.0 += booking.work.0;
        self.blocks += u64::from(booking.blocks.0);
        self.requests += booking.requests;
    }

    fn subtract(&mut self, booking: Booking) {
        self.legs -= 1;
        self.uncached.0 -= booking.uncached.0;
        self.work.0 -= booking.work.0;
        self.blocks -= u64::from(booking.blocks.0);
        self.requests -= booking.requests;
    }
}

/// How long and how many.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// From Route's answer until a worker must have named the reservation.
    pub admission: Duration,
    /// An ended key is remembered for so long.
    pub remember: Duration,
    /// Unsettled reservations.
    pub max_open: usize,
    /// Remembered keys.
    pub max_ended: usize,
}

/// What a worker did with a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Taken: it is part of the worker's own load now.
    Admitted,
    /// Not taken.
    Refused,
    /// Over.
    Finished,
}

/// A worker's report of one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Which.
    pub key: ReservationKey,
    /// What became of it.
    pub settlement: Settlement,
    /// The prefill worker that was used, from a decode worker.
    pub prefill_worker: Option<WorkerRank>,
}

/// A leg that a worker's report has ended.
#[derive(Debug, Clone)]
pub struct SettledLeg {
    /// Which.
    pub leg: Leg,
    /// Whether its worker has taken it, and so stores its blocks.
    pub stored: bool,
}

/// What a key stands for when Route is called with it.
#[derive(Debug)]
pub enum Known<A> {
    /// Nothing: decide.
    New,
    /// This was answered.
    Answered(A),
    /// It was released.
    Released,
}

/// Too many reservations are unsettled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} reservations are unsettled")]
pub struct TooMany(pub usize);

struct Open<A> {
    answer: A,
    legs: Vec<Leg>,
    deadline: Time,
}

struct Ended<A> {
    until: Time,
    /// None: released.
    answer: Option<A>,
}

/// All reservations of a router; `A` is what Route answered.
pub struct Reservations<A> {
    bounds: Bounds,
    open: HashMap<ReservationKey, Open<A>>,
    /// By deadline, for all have equally long. May name reservations that have ended.
    deadlines: VecDeque<(Time, ReservationKey)>,
    ended: HashMap<ReservationKey, Ended<A>>,
    /// By end of memory. May name entries that were renewed.
    memory: VecDeque<(Time, ReservationKey)>,
    pending: HashMap<WorkerRank, Pending>,
}

impl<A: Clone> Reservations<A> {
    /// None yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            open: HashMap::new(),
            deadlines: VecDeque::new(),
            ended: HashMap::new(),
            memory: VecDeque::new(),
            pending: HashMap::new(),
        }
    }

    /// What `key` stands for.
    pub fn known(&self, key: ReservationKey) -> Known<A> {
        if let Some(open) = self.open.get(&key) {
            return Known::Answered(open.answer.clone());
        }
        match self.ended.get(&key) {
            None => Known::New,
            Some(Ended { answer: Some(answer), .. }) => Known::Answered(answer.clone()),
            Some(Ended { answer: None, .. }) => Known::Released,
        }
    }

    /// Books a new key (one that [`Self::known`] calls new).
    pub fn book(&mut self, key: ReservationKey, answer: A, legs: Vec<Leg>, now: Time) -> Result<(), TooMany> {
        if self.open.len() >= self.bounds.max_open {
            return Err(TooMany(self.open.len()));
        }
        for leg in &legs {
            self.pending.entry(leg.worker).or_default().add(leg.booking);
        }
        let deadline = now.after(self.bounds.admission);
        self.deadlines.push_back((deadline, key));
        self.open.insert(key, Open { answer, legs, deadline });
        if self.deadlines.len() > 2 * self.bounds.max_open {
            self.deadlines.retain(|(_, key)| self.open.contains_key(key));
        }
        Ok(())
    }

    /// Ends a key, known or not, and leaves a tombstone. Answers the legs that had not been settled.
    pub fn release(&mut self, key: ReservationKey, now: Time) -> Vec<Leg> {
        let legs = self.open.remove(&key).map_or_else(Vec::new, |open| open.legs);
        self.unbook(&legs);
        self.remember(key, None, now);
        legs
    }

    /// Takes a worker's report of a reservation. Answers the legs it ended.
    pub fn settle(&mut self, worker: InstanceId, settled: &Settled, now: Time) -> Vec<SettledLeg> {
        let Some(open) = self.open.get(&settled.key) else { return Vec::new() };
        let leads = open.legs.iter().any(|leg| leg.worker.instance == worker && leg.side == Side::Decode);
        let over = settled.settlement != Settlement::Admitted;
        let ended = self.end_legs(settled.key, now, |leg| {
            if leg.worker.instance == worker {
                return true;
            }
            let unused = settled.prefill_worker.is_some_and(|used| used != leg.worker);
            leads && leg.side == Side::Prefill && (over || unused)
        });
        let stored = |leg: &Leg| leg.worker.instance == worker && settled.settlement != Settlement::Refused;
        ended.into_iter().map(|leg| SettledLeg { stored: stored(&leg), leg }).collect()
    }

    /// Ends what is past its admission deadline and forgets ended keys in time. Answers the legs that no worker has named.
    pub fn expire(&mut self, now: Time) -> Vec<Leg> {
        let mut unnamed = Vec::new();
        while let Some(&(deadline, key)) = self.deadlines.front()
            && deadline <= now
        {
            self.deadlines.pop_front();
            if self.open.get(&key).is_some_and(|open| open.deadline == deadline) {
                unnamed.extend(self.end_legs(key, now, |_| true));
            }
        }
        while let Some(&(until, key)) = self.memory.front()
            && until <= now
        {
            self.memory.pop_front();
            self.forget(key, until);
        }
        unnamed
    }

    /// Ends every leg of a worker that is gone.
    pub fn drop_worker(&mut self, worker: WorkerRank, now: Time) {
        let has_leg = |open: &Open<A>| open.legs.iter().any(|leg| leg.worker == worker);
        let keys: Vec<_> = self.open.iter().filter(|(_, open)| has_leg(open)).map(|(key, _)| *key).collect();
        for key in keys {
            self.end_legs(key, now, |leg| leg.worker == worker);
        }
    }

    /// Unsettled load of a worker.
    pub fn pending(&self, worker: WorkerRank) -> Pending {
        self.pending.get(&worker).copied().unwrap_or_default()
    }

    /// Reservations with a leg that is not settled.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Remembered keys.
    pub fn remembered(&self) -> usize {
        self.ended.len()
    }

    fn end_legs(&mut self, key: ReservationKey, now: Time, which: impl Fn(&Leg) -> bool) -> Vec<Leg> {
        let Some(open) = self.open.get_mut(&key) else { return Vec::new() };
        let ended: Vec<_> = open.legs.extract_if(.., |leg| which(leg)).collect();
        let over = open.legs.is_empty();
        self.unbook(&ended);
        if over && let Some(open) = self.open.remove(&key) {
            self.remember(key, Some(open.answer), now);
        }
        ended
    }

    fn unbook(&mut self, legs: &[Leg]) {
        for leg in legs {
            if let Some(pending) = self.pending.get_mut(&leg.worker) {
                pending.subtract(leg.booking);
                if pending.legs == 0 {
                    self.pending.remove(&leg.worker);
                }
            }
        }
    }

    fn remember(&mut self, key: ReservationKey, answer: Option<A>, now: Time) {
        let until = now.after(self.bounds.remember);
        self.ended.insert(key, Ended { until, answer });
        self.memory.push_back((until, key));
        while self.memory.len() > self.bounds.max_ended {
            let Some((until, key)) = self.memory.pop_front() else { break };
            self.forget(key, until);
        }
    }

    fn forget(&mut self, key: ReservationKey, until: Time) {
        if self.ended.get(&key).is_some_and(|ended| ended.until == until) {
            self.ended.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use armature_contracts::ids::InstanceId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BOUNDS: Bounds = Bounds {
        admission: Duration::from_secs(10),
        remember: Duration::from_secs(30),
        max_open: 1000,
        max_ended: 1000,
    };

    fn worker(n: u64) -> WorkerRank {
        WorkerRank::first(InstanceId(n))
    }

    fn key(n: u32) -> ReservationKey {
        ReservationKey { id: 1, attempt: n }
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn leg(n: u64, side: Side, tokens: u64) -> Leg {
        let booking = Booking {
            uncached: Tokens(tokens),
            work: Micros(tokens * 7),
            blocks: Blocks(tokens as u32),
            requests: 1,
        };
        Leg { worker: worker(n), side, booking, promised: Arc::new([]) }
    }

    fn settled(n: u32, settlement: Settlement, prefill_worker: Option<u64>) -> Settled {
        Settled { key: key(n), settlement, prefill_worker: prefill_worker.map(worker) }
    }

    #[test]
    fn a_report_ends_the_leg_and_the_key_still_has_its_answer() {
        let mut book = Reservations::new(BOUNDS);
        book.book(key(1), "first", vec![leg(1, Side::Decode, 5)], at(0)).unwrap();
        assert_eq!(book.pending(worker(1)).uncached, Tokens(5));
        let ended = book.settle(InstanceId(1), &settled(1, Settlement::Admitted, None), at(1));
        assert_eq!(ended.iter().map(|ended| ended.stored).collect::<Vec<_>>(), [true]);
        assert_eq!((book.pending(worker(1)), book.open()), (Pending::default(), 0));
        assert!(matches!(book.known(key(1)), Known::Answered("first")));
        book.expire(at(31));
        assert!(matches!(book.known(key(1)), Known::New));
    }

    #[test]
    fn release_leaves_a_tombstone_known_or_not() {
        let mut book = Reservations::new(BOUNDS);
        book.book(key(1), (), vec![leg(1, Side::Decode, 5)], at(0)).unwrap();
        assert_eq!(book.release(key(1), at(1)).len(), 1);
        assert!(book.release(key(2), at(1)).is_empty());
        for n in 1..=2 {
            assert!(matches!(book.known(key(n)), Known::Released));
        }
        assert_eq!(book.pending(worker(1)), Pending::default());
        // Ended by a report first, released afterwards.
        book.book(key(3), (), vec![leg(1, Side::Decode, 5)], at(1)).unwrap();
        book.settle(InstanceId(1), &settled(3, Settlement::Finished, None), at(2));
        book.release(key(3), at(3));
        book.expire(at(32));
        assert!(matches!(book.known(key(3)), Known::Released));
        book.expire(at(33));
        assert!(matches!(book.known(key(3)), Known::New));
    }

    #[test]
    fn a_deadline_ends_what_no_worker_names() {
        let mut book = Reservations::new(BOUNDS);
        book.book(key(1), (), vec![leg(1, Side::Decode, 5), leg(2, Side::Prefill, 9)], at(0)).unwrap();
        book.settle(InstanceId(2), &settled(1, Settlement::Admitted, None), at(1));
        assert!(book.expire(at(9)).is_empty());
        assert_eq!(book.expire(at(10)).len(), 1);
        assert_eq!((book.pending(worker(1)), book.open()), (Pending::default(), 0));
    }

    #[test]
    fn the_decode_workers_report_ends_the_leg_of_an_unused_prefill_worker() {
        for (settlement, used, left) in [
            (Settlement::Admitted, None, 9),
            (Settlement::Admitted, Some(2), 9),
            (Settlement::Admitted, Some(3), 0),
            (Settlement::Finished, Some(2), 0),
            (Settlement::Refused, None, 0),
        ] {
            let mut book = Reservations::new(BOUNDS);
            book.book(key(1), (), vec![leg(1, Side::Decode, 5), leg(2, Side::Prefill, 9)], at(0)).unwrap();
            book.settle(InstanceId(1), &settled(1, settlement, used), at(1));
            assert_eq!(book.pending(worker(1)), Pending::default());
            assert_eq!(book.pending(worker(2)).uncached, Tokens(left), "{settlement:?} {used:?}");
        }
    }

    #[test]
    fn the_bound_refuses() {
        let mut book = Reservations::new(Bounds { max_open: 1, ..BOUNDS });
        book.book(key(1), (), vec![leg(1, Side::Decode, 5)], at(0)).unwrap();
        assert_eq!(book.book(key(2), (), vec![leg(1, Side::Decode, 5)], at(0)), Err(TooMany(1)));
        book.release(key(1), at(0));
        assert_eq!(book.book(key(2), (), vec![leg(1, Side::Decode, 5)], at(0)), Ok(()));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Route { key: u32, decode: u64, prefill: Option<u64>, tokens: u64 },
        Release { key: u32 },
        Settle { key: u32, worker: u64, how: usize, used: Option<u64> },
        Wait { seconds: u64 },
        Gone { worker: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let route = (0u32..12, 0u64..3, prop::option::of(3u64..5), 1u64..100)
            .prop_map(|(key, decode, prefill, tokens)| Step::Route { key, decode, prefill, tokens });
        let settle = (0u32..12, 0u64..5, 0usize..3, prop::option::of(3u64..5))
            .prop_map(|(key, worker, how, used)| Step::Settle { key, worker, how, used });
        prop::collection::vec(
            prop_oneof![
                4 => route,
                4 => settle,
                2 => (0u32..12).prop_map(|key| Step::Release { key }),
                1 => (0u64..15).prop_map(|seconds| Step::Wait { seconds }),
                1 => (0u64..5).prop_map(|worker| Step::Gone { worker }),
            ],
            0..80,
        )
    }

    proptest! {
        #[test]
        fn load_does_not_drift(steps in steps(), max_ended in 0usize..20) {
            let mut book = Reservations::new(Bounds { max_ended, ..BOUNDS });
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Route { key: k, decode, prefill, tokens } => {
                        book.expire(at(now));
                        let mut legs = vec![leg(decode, Side::Decode, tokens)];
                        legs.extend(prefill.map(|p| leg(p, Side::Prefill, tokens)));
                        if matches!(book.known(key(k)), Known::New) {
                            book.book(key(k), k, legs, at(now)).unwrap();
                        }
                    }
                    Step::Release { key: k } => _ = book.release(key(k), at(now)),
                    Step::Settle { key: k, worker: w, how, used } => {
                        let how = [Settlement::Admitted, Settlement::Refused, Settlement::Finished][how];
                        book.settle(InstanceId(w), &settled(k, how, used), at(now));
                        let left = book.open.get(&key(k)).map_or(0, |open| open.legs.iter().filter(|leg| leg.worker == worker(w)).count());
                        prop_assert_eq!(left, 0);
                    }
                    Step::Wait { seconds } => {
                        now += seconds;
                        book.expire(at(now));
                    }
                    Step::Gone { worker: w } => {
                        book.drop_worker(worker(w), at(now));
                        prop_assert_eq!(book.pending(worker(w)), Pending::default());
                    }
                }
                let mut sums = BTreeMap::<WorkerRank, Pending>::new();
                for leg in book.open.values().flat_map(|open| &open.legs) {
                    sums.entry(leg.worker).or_default().add(leg.booking);
                }
                prop_assert_eq!(&sums, &book.pending.clone().into_iter().collect());
                prop_assert!(book.ended.len() <= max_ended && book.memory.len() <= max_ended);
                prop_assert!(book.open.values().all(|open| !open.legs.is_empty() && open.deadline.since(at(now)) <= BOUNDS.admission));
            }
            book.expire(at(now + 10));
            prop_assert_eq!((book.open(), book.pending.len(), book.deadlines.len()), (0, 0, 0));
            book.expire(at(now + 40));
            prop_assert_eq!((book.remembered(), book.memory.len()), (0, 0));
        }
    }
}
