#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn worker(id: u64) -> WorkerRank {
    WorkerRank::first(InstanceId(id))
}

fn lost() -> Failure {
    Failure { fault: Fault::new(Reason::WorkerLost, "reset"), contacted: true }
}

fn busy() -> Failure {
    Failure { fault: Fault::new(Reason::WorkerBusy, "full"), contacted: true }
}

fn start(n: u32) -> (Flight, LegId) {
    let (mut flight, plan) = Flight::new(n, Limits::default(), 1);
    flight.placed(plan.leg, worker(1));
    flight.admitted(plan.leg);
    (flight, plan.leg)
}

fn draw() -> impl FnMut() -> u128 {
    let mut next = 100;
    move || {
        next += 1;
        next
    }
}

fn plans(next: Next) -> Vec<LegPlan> {
    match next {
        Next::Again(plans) => plans,
        Next::Hold(_, fault) | Next::End(fault) => panic!("ended: {fault}"),
    }
}

#[test]
fn each_choice_with_tokens_moves_alone_and_the_others_together() {
    let (mut flight, leg) = start(4);
    flight.tokens(leg, 0, 0, &[7, 8]).unwrap();
    flight.tokens(leg, 2, 0, &[9]).unwrap();
    flight.tokens(leg, 3, 0, &[5]).unwrap();
    flight.done(3);
    let moved = plans(flight.failed(leg, lost(), || false, &mut draw()));
    let choices: Vec<_> = moved.iter().map(|plan| plan.choices.clone()).collect();
    assert_eq!(choices, [vec![(0, vec![7, 8])], vec![(2, vec![9])], vec![(1, vec![])]]);
    assert_eq!(moved[0].reservation, ReservationKey { id: 1, attempt: 2 });
    assert_eq!(moved[1].reservation, ReservationKey { id: 101, attempt: 1 });
    assert!(moved.iter().all(|plan| plan.exclude == [worker(1)]));
    assert_eq!((flight.migrations(), flight.deaths()), (1, 1));
}

#[test]
fn two_deaths_are_survived_and_the_third_ends_it() {
    let (mut flight, mut leg) = start(1);
    for id in 2..=3 {
        leg = plans(flight.failed(leg, lost(), || false, &mut draw()))[0].leg;
        flight.placed(leg, worker(id));
        flight.admitted(leg);
    }
    let Next::End(fault) = flight.failed(leg, lost(), || false, &mut draw()) else {
        panic!("a fourth worker")
    };
    assert_eq!(fault.reason, Reason::QueryOfDeath);
}

#[test]
fn a_refusal_needs_the_budget_and_at_most_three_are_tried() {
    let (mut flight, mut plan) = Flight::new(1, Limits::default(), 1);
    for id in 1..=3 {
        flight.placed(plan.leg, worker(id));
        plan = plans(flight.failed(plan.leg, busy(), || true, &mut draw())).remove(0);
        assert_eq!(plan.reservation.attempt, id as u32 + 1);
        assert!(plan.exclude.contains(&worker(id)));
    }
    flight.placed(plan.leg, worker(4));
    assert!(matches!(flight.failed(plan.leg, busy(), || true, &mut draw()), Next::End(_)));

    let (mut flight, plan) = Flight::new(1, Limits::default(), 1);
    flight.placed(plan.leg, worker(1));
    let Next::End(fault) = flight.failed(plan.leg, busy(), || false, &mut draw()) else {
        panic!("no budget")
    };
    assert_eq!(fault.reason, Reason::WorkerBusy);
}

#[test]
fn a_request_that_every_worker_gives_up_ends() {
    let (mut flight, mut leg) = start(1);
    for round in 0.. {
        match flight.given_up(leg, 0, &mut draw()) {
            Next::Again(next) => leg = next[0].leg,
            Next::Hold(..) | Next::End(_) => {
                assert_eq!(round, Limits::default().moves);
                break;
            }
        }
        flight.placed(leg, worker(u64::from(round) + 2));
        flight.admitted(leg);
    }
    assert_eq!(flight.deaths(), 0);
}

#[test]
fn a_choice_that_is_given_up_moves_and_the_others_stay() {
    let (mut flight, leg) = start(2);
    flight.tokens(leg, 1, 0, &[4]).unwrap();
    let moved = plans(flight.given_up(leg, 1, &mut draw()));
    assert_eq!(moved[0].choices, [(1, vec![4])]);
    assert!(flight.tokens(leg, 1, 1, &[5]).is_err());
    flight.tokens(leg, 0, 0, &[6]).unwrap();
}

#[test]
fn a_worker_that_gave_up_is_better_than_none_and_a_dead_one_is_not() {
    let none = || Failure { fault: Fault::new(Reason::NoWorkers, "none"), contacted: true };
    let (mut flight, leg) = start(1);
    let moved = plans(flight.given_up(leg, 0, &mut draw()));
    let again = plans(flight.failed(moved[0].leg, none(), || true, &mut draw()));
    assert_eq!(again[0].exclude, []);

    let (mut flight, leg) = start(1);
    let moved = plans(flight.failed(leg, lost(), || true, &mut draw()));
    let Next::Hold(plan, fault) = flight.failed(moved[0].leg, none(), || true, &mut draw()) else {
        panic!("went on")
    };
    assert_eq!(fault.reason, Reason::NoWorkers);
    assert_eq!(plan.exclude, [worker(1)]);
}

#[test]
fn the_last_refusal_is_told_when_nobody_is_left_to_ask() {
    let (mut flight, plan) = Flight::new(1, Limits::default(), 1);
    flight.placed(plan.leg, worker(1));
    let next = plans(flight.failed(plan.leg, busy(), || true, &mut draw()));
    let none = Failure { fault: Fault::new(Reason::NoWorkers, "none"), contacted: true };
    let Next::End(fault) = flight.failed(next[0].leg, none, || true, &mut draw()) else { panic!("went on") };
    assert_eq!(fault.reason, Reason::WorkerBusy);
}

#[test]
fn what_a_router_says_is_final() {
    let (mut flight, plan) = Flight::new(1, Limits::default(), 1);
    let fault = Fault::new(Reason::HashSchemeMismatch, "another scheme");
    let next =
        flight.failed(plan.leg, Failure { fault: fault.clone(), contacted: true }, || true, &mut draw());
    assert_eq!(next, Next::End(fault));
}

#[test]
fn while_nobody_is_there_a_leg_is_held_under_the_next_attempt() {
    let none = || Failure { fault: Fault::new(Reason::NoWorkers, "none"), contacted: false };
    let (mut flight, mut plan) = Flight::new(1, Limits::default(), 1);
    for attempt in 2..100 {
        let Next::Hold(held, fault) = flight.failed(plan.leg, none(), || false, &mut draw()) else {
            panic!("not held")
        };
        assert_eq!((held.reservation.attempt, fault.reason), (attempt, Reason::NoWorkers));
        plan = held;
    }
    assert_eq!(flight.retries(), 0);
    flight.placed(plan.leg, worker(1));
    flight.admitted(plan.leg);
    flight.tokens(plan.leg, 0, 0, &[1]).unwrap();
}

#[test]
fn the_only_worker_on_its_way_out_is_no_reason_to_end() {
    let draining = || Failure { fault: Fault::new(Reason::Draining, "draining"), contacted: true };
    let (mut flight, plan) = Flight::new(1, Limits::default(), 1);
    flight.placed(plan.leg, worker(1));
    let next = plans(flight.failed(plan.leg, draining(), || true, &mut draw()));
    let none = Failure { fault: Fault::new(Reason::NoWorkers, "none"), contacted: true };
    let Next::Hold(_, fault) = flight.failed(next[0].leg, none, || true, &mut draw()) else {
        panic!("not held")
    };
    assert_eq!(fault.reason, Reason::Draining);
}

#[test]
fn a_gap_a_repetition_and_a_foreign_choice_are_errors() {
    let (mut flight, leg) = start(1);
    flight.tokens(leg, 0, 0, &[1, 2]).unwrap();
    assert!(flight.tokens(leg, 0, 3, &[3]).is_err());
    assert!(flight.tokens(leg, 0, 1, &[2]).is_err());
    assert!(flight.tokens(leg, 1, 0, &[1]).is_err());
    assert_eq!(flight.generated(0), [1, 2]);
}

proptest! {
    /// Whatever dies when: each choice's tokens come once and in order, and every open choice is in exactly one leg.
    #[test]
    fn no_token_is_lost_or_repeated(n in 1_u32..4, steps in prop::collection::vec((0_u32..4, any::<bool>()), 0..60)) {
        let limits = Limits { deaths: usize::MAX, moves: u32::MAX, retries: 3 };
        let (mut flight, plan) = Flight::new(n, limits, 1);
        let mut open = vec![plan];
        let mut expected = vec![0_u32; n as usize];
        let (mut draw, mut next_worker) = (draw(), 1);
        for (pick, dies) in steps {
            let at = pick as usize % open.len();
            let plan = open[at].clone();
            flight.placed(plan.leg, worker(next_worker));
            next_worker += 1;
            flight.admitted(plan.leg);
            if dies {
                open.remove(at);
                open.extend(plans(flight.failed(plan.leg, lost(), || false, &mut draw)));
            } else {
                let choice = plan.choices[0].0;
                let position = expected[choice as usize];
                flight.tokens(plan.leg, choice, position, &[position]).unwrap();
                expected[choice as usize] += 1;
            }
            let mut covered: Vec<u32> = open.iter().flat_map(|plan| plan.choices.iter().map(|it| it.0)).collect();
            covered.sort_unstable();
            prop_assert_eq!(covered, (0..n).collect::<Vec<_>>());
        }
        for choice in 0..n {
            let all: Vec<u32> = (0..expected[choice as usize]).collect();
            prop_assert_eq!(flight.generated(choice), all.as_slice());
        }
    }
}
