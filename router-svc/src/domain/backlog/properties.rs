//! Properties of the order, of fairness and of the bounds.

use std::collections::{BTreeMap, HashMap, HashSet};

use armature_contracts::ids::{InstanceId, WorkerRank};
use proptest::prelude::*;

use super::place::{MAX_CLASS, MIN_CLASS, overtaken_for};
use super::*;
use crate::domain::worker::Digest;

const AGING: Duration = Duration::from_secs(5);
const BOUNDS: Bounds = Bounds { max_requests: 10_000, max_bytes: 1 << 30, aging: AGING, fair: true };

fn at(millis: u64) -> Time {
    Time(Duration::from_millis(millis))
}

fn request(n: u32, migrated: bool, constraints: Constraints) -> Request {
    let digest = |n| Digest(Arc::new([n]));
    let question = Question {
        namespace: "default".into(),
        set: ServedSet { model: digest(1), tokenizer: digest(2), template: digest(3) },
        prompt: Tokens(100),
        hashes: None,
        choices: 1,
        migrated,
        expected_output: None,
        constraints,
    };
    let key = ReservationKey { id: n.into(), attempt: 1 };
    Request { key, question: Arc::new(question), prompt: Arc::new([]) }
}

fn plain(n: u32) -> Request {
    request(n, false, Constraints::default())
}

fn claim(tenant: usize, priority: i32, until: u64) -> Claim {
    Claim { tenant: tenant.to_string().into(), priority, until: at(until) }
}

fn pool() -> PoolKey {
    PoolKey::of(&plain(0).question)
}

/// Lets one request go that fits, and answers which.
fn one(backlog: &mut Backlog, now: u64, given: impl Fn(u128) -> u64) -> Option<u128> {
    let mut room = 1;
    let left = backlog.offer(&pool(), at(now), |request| {
        if room == 0 {
            return Offer::Stays;
        }
        room -= 1;
        Offer::Served(Tokens(given(request.key.id)), request.key.id)
    });
    left.into_iter().map(|(_, id)| id).next()
}

#[test]
fn of_one_tenant_class_deadline_and_work_decide() {
    let mut backlog = Backlog::new(BOUNDS);
    let mut enter = |n, priority, until, uncached| {
        backlog.enter(plain(n), &claim(1, priority, until), Tokens(uncached), at(0)).unwrap();
    };
    enter(1, 0, 9_000, 50);
    enter(2, 0, 9_000, 10);
    enter(3, 0, 5_000, 90);
    enter(4, 3, 9_000, 90);
    let order: Vec<_> = std::iter::from_fn(|| one(&mut backlog, 1, |_| 1)).collect();
    assert_eq!(order, [4, 3, 2, 1]);
}

#[test]
fn migrated_requests_come_first_and_do_not_stop_others() {
    let mut backlog = Backlog::new(BOUNDS);
    for n in 0..3 {
        backlog.enter(plain(n), &claim(1, 8, 9_000), Tokens(1), at(0)).unwrap();
    }
    for n in 10..20 {
        let request = request(n, true, Constraints::default());
        backlog.enter(request, &claim(2, -8, 9_000), Tokens(1), at(0)).unwrap();
    }
    let order: Vec<_> = std::iter::from_fn(|| one(&mut backlog, 1, |_| 1)).collect();
    assert_eq!(order, [10, 11, 12, 13, 0, 14, 15, 16, 17, 1, 18, 19, 2]);
}

#[test]
fn what_fits_nobody_does_not_hold_up_what_does() {
    let mut backlog = Backlog::new(BOUNDS);
    let rank = WorkerRank::first(InstanceId(7));
    let pinned = Constraints { pin_decode: Some(rank), ..Constraints::default() };
    backlog.enter(request(1, false, pinned), &claim(1, 8, 9_000), Tokens(1), at(0)).unwrap();
    backlog.enter(plain(2), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
    backlog.enter(plain(3), &claim(2, 0, 9_000), Tokens(1), at(0)).unwrap();
    let left = backlog.offer(&pool(), at(1), |request| {
        if request.question.constraints.pin_decode.is_some() {
            Offer::Stays
        } else {
            Offer::Served(Tokens(1), ())
        }
    });
    assert_eq!(left.iter().map(|(left, ())| left.request.key.id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(backlog.totals().requests, 1);
}

#[test]
fn many_that_want_the_same_are_asked_for_once() {
    let mut backlog = Backlog::new(BOUNDS);
    for n in 0..1_000 {
        backlog.enter(plain(n), &claim(n as usize % 7, 0, 9_000), Tokens(1), at(0)).unwrap();
    }
    let mut asked = 0;
    let left = backlog.offer(&pool(), at(1), |_| {
        asked += 1;
        if asked <= 3 { Offer::Served(Tokens(1), ()) } else { Offer::Stays }
    });
    assert_eq!((left.len(), asked), (3, 4));
}

#[test]
fn a_flood_of_one_tenant_does_not_delay_another() {
    let mut backlog = Backlog::new(BOUNDS);
    for n in 0..1_000 {
        backlog.enter(plain(n), &claim(1, 8, 9_000), Tokens(1), at(0)).unwrap();
    }
    for _ in 0..100 {
        one(&mut backlog, 1, |_| 50).unwrap();
    }
    // However long they have waited and whatever class they claim.
    backlog.enter(plain(5_000), &claim(2, -8, 900_000), Tokens(1), at(60_000)).unwrap();
    let turns = (0..2).filter_map(|_| one(&mut backlog, 60_001, |_| 50)).collect::<Vec<_>>();
    assert!(turns.contains(&5_000), "{turns:?}");
}

#[test]
fn without_fairness_all_are_one_tenant() {
    let mut backlog = Backlog::new(Bounds { fair: false, ..BOUNDS });
    for n in 0..4 {
        backlog.enter(plain(n), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
    }
    backlog.enter(plain(9), &claim(2, 0, 9_000), Tokens(1), at(0)).unwrap();
    let order: Vec<_> = std::iter::from_fn(|| one(&mut backlog, 1, |_| 1)).collect();
    assert_eq!(order, [0, 1, 2, 3, 9]);
}

#[test]
fn both_bounds_refuse_and_room_comes_back() {
    let mut backlog = Backlog::new(Bounds { max_requests: 2, ..BOUNDS });
    let first = backlog.enter(plain(1), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
    backlog.enter(plain(2), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
    let refused = backlog.enter(plain(3), &claim(1, 0, 9_000), Tokens(1), at(0));
    assert_eq!(refused, Err(Full::Requests(2)));
    assert!(backlog.cancel(first, at(1)));
    assert!(backlog.enter(plain(3), &claim(1, 0, 9_000), Tokens(1), at(0)).is_ok());

    let one = Backlog::new(BOUNDS)
        .enter(plain(1), &claim(1, 0, 9_000), Tokens(1), at(0))
        .map(|_| bytes(&plain(1), &claim(1, 0, 9_000)));
    let mut backlog = Backlog::new(Bounds { max_bytes: one.unwrap() * 3 / 2, ..BOUNDS });
    backlog.enter(plain(1), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
    assert!(matches!(backlog.enter(plain(2), &claim(1, 0, 9_000), Tokens(1), at(0)), Err(Full::Bytes(_))));
}

#[test]
fn calls_for_one_reservation_wait_for_one_answer() {
    let mut backlog = Backlog::new(BOUNDS);
    let first = backlog.enter(plain(1), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
    let key = plain(1).key;
    let others: Vec<_> = (1..MAX_TICKETS).map(|_| backlog.join(key).unwrap().unwrap()).collect();
    assert_eq!(backlog.join(key), Some(Err(Full::Calls(MAX_TICKETS))));
    assert!(!backlog.cancel(first, at(1)), "others wait for it");
    let left = backlog.withdraw(key, at(5)).unwrap();
    assert_eq!((left.tickets, left.waited.as_millis()), (others, 5));
    assert_eq!((backlog.join(key), backlog.totals().requests, backlog.totals().bytes), (None, 0, 0));
}

#[test]
fn pools_that_nobody_waits_for_are_forgotten() {
    let mut backlog = Backlog::new(BOUNDS);
    for n in 0..1_000_u32 {
        let mut asked = plain(n);
        Arc::make_mut(&mut asked.question).namespace = n.to_string().into();
        backlog.enter(asked.clone(), &claim(1, 0, 9_000), Tokens(1), at(0)).unwrap();
        backlog.withdraw(asked.key, at(1)).unwrap();
    }
    assert!(backlog.pools.len() <= MAX_IDLE_POOLS + 1);
}

#[derive(Debug, Clone)]
enum Step {
    Enter { tenant: usize, priority: i32, wait: u64, uncached: u64, migrated: bool },
    Join { nth: usize },
    Cancel { nth: usize },
    Withdraw { nth: usize },
    Offer { room: usize },
    Wait { millis: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..5, MIN_CLASS - 2..MAX_CLASS + 3, 0u64..60_000, 0u64..10_000, prop::bool::weighted(0.1))
            .prop_map(|(tenant, priority, wait, uncached, migrated)| Step::Enter { tenant, priority, wait, uncached, migrated }),
        1 => (0usize..50).prop_map(|nth| Step::Join { nth }),
        1 => (0usize..50).prop_map(|nth| Step::Cancel { nth }),
        1 => (0usize..50).prop_map(|nth| Step::Withdraw { nth }),
        4 => (0usize..4).prop_map(|room| Step::Offer { room }),
        3 => (0u64..8_000).prop_map(|millis| Step::Wait { millis }),
    ];
    prop::collection::vec(step, 0..200)
}

/// What the simulation knows of a request.
#[derive(Debug, Clone)]
struct Known {
    tenant: usize,
    priority: i32,
    since: u64,
    until: u64,
    migrated: bool,
}

proptest! {
    #[test]
    fn every_call_ends_once_bounds_hold_and_nobody_is_overtaken_for_ever(steps in steps()) {
        let bounds = Bounds { max_requests: 20, max_bytes: 20_000, ..BOUNDS };
        let mut backlog = Backlog::new(bounds);
        let mut now = 0;
        let mut known = HashMap::<u128, Known>::new();
        let mut waiting = Vec::<(Ticket, u128)>::new();
        let mut ended = HashSet::<Ticket>::new();
        let mut number = 0;
        for step in steps {
            let mut left = Vec::new();
            match step {
                Step::Enter { tenant, priority, wait, uncached, migrated } => {
                    number += 1;
                    let asked = request(number, migrated, Constraints::default());
                    let until = now + wait;
                    let full = backlog.totals();
                    match backlog.enter(asked.clone(), &claim(tenant, priority, until), Tokens(uncached), at(now)) {
                        Ok(ticket) => {
                            waiting.push((ticket, asked.key.id));
                            known.insert(asked.key.id, Known { tenant, priority, since: now, until, migrated });
                        }
                        Err(Full::Requests(_)) => prop_assert_eq!(full.requests, bounds.max_requests),
                        Err(Full::Bytes(_)) => prop_assert!(full.bytes + 2_000 > bounds.max_bytes),
                        Err(Full::Calls(_)) => prop_assert!(false),
                    }
                }
                Step::Join { nth } => {
                    if let Some((_, id)) = waiting.get(nth).copied() {
                        let joined = backlog.join(ReservationKey { id, attempt: 1 });
                        match joined {
                            Some(Ok(ticket)) => waiting.push((ticket, id)),
                            Some(Err(full)) => prop_assert!(matches!(full, Full::Calls(_))),
                            None => prop_assert!(false, "{} does not wait", id),
                        }
                    }
                }
                Step::Cancel { nth } => {
                    if nth < waiting.len() {
                        let (ticket, id) = waiting.swap_remove(nth);
                        let last = !waiting.iter().any(|(_, other)| *other == id);
                        prop_assert_eq!(backlog.cancel(ticket, at(now)), last);
                        prop_assert!(!backlog.cancel(ticket, at(now)), "twice");
                        prop_assert!(ended.insert(ticket));
                        if last {
                            known.remove(&id);
                        }
                    }
                }
                Step::Withdraw { nth } => {
                    if let Some((_, id)) = waiting.get(nth).copied() {
                        left.extend(backlog.withdraw(ReservationKey { id, attempt: 1 }, at(now)));
                    }
                }
                Step::Offer { mut room } => {
                    let before = known.clone();
                    let gone = backlog.offer(&pool(), at(now), |request| {
                        if room == 0 {
                            return Offer::Stays;
                        }
                        room -= 1;
                        Offer::Served(Tokens(7), request.key.id)
                    });
                    prop_assert!(room == 0 || backlog.totals().requests == 0, "room is left, and somebody waits");
                    let mut passed: Vec<_> = before.into_iter().collect();
                    for (it, id) in gone {
                        // Whoever of the same flow stays although it came so much earlier was overtaken wrongly.
                        let went = known[&id].clone();
                        passed.retain(|(other, _)| *other != id);
                        for (_, other) in &passed {
                            let same = other.migrated == went.migrated && (went.migrated || other.tenant == went.tenant);
                            let limit = overtaken_for(other.priority, AGING).as_millis() as u64;
                            prop_assert!(!same || went.since < other.since + limit, "{:?} went before {:?}", went, other);
                        }
                        left.push(it);
                    }
                }
                Step::Wait { millis } => {
                    now += millis;
                    let late = backlog.expire(at(now));
                    for it in &late {
                        prop_assert!(known[&it.request.key.id].until <= now);
                    }
                    left.extend(late);
                }
            }
            for it in left {
                let id = it.request.key.id;
                prop_assert_eq!(it.waited.as_millis() as u64, now - known[&id].since);
                let mut mine: Vec<_> = waiting.extract_if(.., |(_, other)| *other == id).map(|(ticket, _)| ticket).collect();
                let mut told = it.tickets.clone();
                mine.sort_unstable();
                told.sort_unstable();
                prop_assert_eq!(&mine, &told);
                prop_assert!(told.into_iter().all(|ticket| ended.insert(ticket)), "a call ended twice");
                known.remove(&id);
            }
            let totals = backlog.totals();
            prop_assert_eq!(totals.requests, known.len());
            prop_assert!(totals.requests <= bounds.max_requests && totals.bytes <= bounds.max_bytes);
            prop_assert!(known.values().all(|it| it.until > now || it.since == it.until || it.until >= it.since));
            prop_assert_eq!(backlog.tickets.len(), waiting.len());
        }
        let left = backlog.clear(at(now));
        prop_assert_eq!(left.iter().map(|it| it.tickets.len()).sum::<usize>(), waiting.len());
        prop_assert_eq!(backlog.totals(), Totals::default());
        prop_assert!(backlog.deadlines.is_empty() && backlog.tickets.is_empty());
    }

    #[test]
    fn tenants_that_always_wait_are_given_the_same_within_a_request_of_each(
        sizes in prop::collection::vec(prop::collection::vec(1u64..5_000, 1..40), 2..6), order in any::<u64>(),
    ) {
        // Each tenant's requests wait from the start, in as many classes as there are; served are as many as the poorest has.
        let mut backlog = Backlog::new(BOUNDS);
        let mut given = HashMap::new();
        let mut number = 0;
        for (tenant, sizes) in sizes.iter().enumerate() {
            for (nth, size) in sizes.iter().enumerate() {
                number += 1;
                given.insert(u128::from(number), (tenant, *size));
                let priority = ((order >> (nth % 60)) & 7) as i32 - tenant as i32;
                backlog.enter(plain(number), &claim(tenant, priority, 60_000), Tokens(*size), at(0)).unwrap();
            }
        }
        let largest = sizes.iter().flatten().max().copied().unwrap_or(0);
        let mut left: Vec<_> = sizes.iter().map(Vec::len).collect();
        let mut served = BTreeMap::<usize, u64>::new();
        while left.iter().all(|left| *left > 0) {
            let id = one(&mut backlog, 1, |id| given[&id].1).unwrap();
            let (tenant, size) = given[&id];
            *served.entry(tenant).or_default() += size;
            left[tenant] -= 1;
            let all = (0..sizes.len()).map(|tenant| served.get(&tenant).copied().unwrap_or(0));
            let (least, most) = all.fold((u64::MAX, 0), |(least, most), it| (least.min(it), most.max(it)));
            prop_assert!(most - least <= 2 * largest, "{:?} with requests of at most {}", served, largest);
        }
    }
}
