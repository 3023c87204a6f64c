//! What routers are told of their bookings.

use std::time::Duration;

use armature_worker::domain::ids::ReservationKey;
use armature_worker::domain::report::Settlement::{Admitted, Finished, Refused};
use armature_worker::domain::reservations::Reservations;
use armature_worker::domain::time::Time;

fn key(id: u128) -> ReservationKey {
    ReservationKey { id, attempt: 0 }
}

fn at(secs: u64) -> Time {
    Time(Duration::from_secs(secs))
}

#[test]
fn a_subscriber_hears_each_change_once_and_everything_when_it_subscribes_again() {
    let mut ledger = Reservations::new(Duration::from_secs(30), 100);
    ledger.settle(key(1), Admitted, at(0));
    let (settled, cursor) = ledger.settled_since(None);
    assert_eq!(settled, [(key(1), Admitted)]);
    assert_eq!(ledger.settled_since(Some(cursor)).0, []);
    ledger.settle(key(2), Refused, at(1));
    ledger.settle(key(1), Finished, at(2));
    assert_eq!(ledger.settled_since(Some(cursor)).0, [(key(2), Refused), (key(1), Finished)]);
    assert_eq!(ledger.settled_since(None).0, [(key(2), Refused), (key(1), Finished)]);
}

#[test]
fn ended_keys_are_forgotten_by_age_and_by_number() {
    let mut ledger = Reservations::new(Duration::from_secs(30), 2);
    ledger.settle(key(1), Admitted, at(0));
    ledger.settle(key(2), Refused, at(0));
    ledger.forget(at(29));
    assert!(ledger.knows(key(2)));
    ledger.forget(at(30));
    assert!(!ledger.knows(key(2)) && ledger.knows(key(1)), "a key in flight is never forgotten");
    for id in 3..6 {
        ledger.settle(key(id), Refused, at(31));
    }
    let known: Vec<u128> = (1..6).filter(|id| ledger.knows(key(*id))).collect();
    assert_eq!(known, [1, 4, 5]);
    assert_eq!(ledger.in_flight(), 1);
}

#[test]
fn an_end_is_final() {
    let mut ledger = Reservations::new(Duration::from_secs(30), 2);
    ledger.settle(key(1), Refused, at(0));
    ledger.settle(key(1), Admitted, at(1));
    assert_eq!(ledger.settled_since(None).0, [(key(1), Refused)]);
}
