use super::*;
use armature_contracts::ids::InstanceId;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn rank(n: u64) -> WorkerRank {
    WorkerRank::first(InstanceId(n))
}

fn at(seconds: f64) -> Time {
    Time(Duration::from_secs_f64(seconds))
}

fn mark(batch: u64) -> Mark {
    Mark { batch, count: batch, digest: batch }
}

fn known(batch: u64, said: u64) -> RankView {
    RankView { mark: Some(mark(batch)), said }
}

fn present(ranks: impl IntoIterator<Item = u64>) -> BTreeMap<WorkerRank, u64> {
    ranks.into_iter().map(|n| (rank(n), n)).collect()
}

/// A reader that follows rank 1, which is at batch 5.
fn following() -> Reader {
    let mut reader = Reader::new(4, at(0.0));
    reader.members(&present([1]), at(0.0));
    reader.store_up();
    assert_eq!(reader.reads(|_| RankView::default(), 10), [Read::Load(rank(1))]);
    assert_eq!(reader.loaded(rank(1), Ok(()), at(0.1)), Verdict::Apply);
    assert_eq!(reader.reads(|_| known(5, 5), 10), [Read::Tail { rank: rank(1), after: 5 }]);
    reader
}

#[test]
fn what_follows_is_applied_and_a_hole_asks_the_worker() {
    let mut reader = following();
    assert_eq!(reader.tail(rank(1), 5, &[6, 7], false, at(1.0)), Verdict::Apply);
    assert_eq!(reader.tail(rank(1), 7, &[], false, at(1.0)), Verdict::Ignore);
    assert!(reader.switches().is_empty());
    assert_eq!(reader.tail(rank(1), 7, &[9], false, at(1.0)), Verdict::Ignore);
    assert_eq!(reader.switches(), [(rank(1), Some(Remedy::Hole))]);
    assert_eq!(reader.tail(rank(1), 7, &[8], false, at(1.0)), Verdict::Ignore, "what was on its way");
}

#[test]
fn the_store_serves_again_once_it_has_the_ranks_very_place() {
    let mut reader = following();
    reader.refused(rank(1), Remedy::Doubt);
    reader.switches();
    reader.notified(rank(1));
    assert!(reader.reads(|_| known(8, 8), 10).is_empty(), "only sweeps look");
    reader.sweep(|_| known(8, 8), at(2.0));
    assert_eq!(reader.reads(|_| known(8, 8), 10), [Read::Probe { rank: rank(1), mark: mark(8) }]);
    let other = Mark { digest: 99, ..mark(8) };
    for elsewhere in [None, Some(mark(10)), Some(other)] {
        reader.probed(rank(1), mark(8), elsewhere, at(2.0));
        assert!(reader.switches().is_empty(), "{elsewhere:?}");
    }
    for place in [mark(8), mark(9)] {
        let mut reader = following();
        reader.refused(rank(1), Remedy::Doubt);
        reader.switches();
        reader.probed(rank(1), mark(8), Some(place), at(2.0));
        assert_eq!(reader.switches(), [(rank(1), None)]);
    }
}

#[test]
fn a_store_that_stays_behind_the_workers_word_is_not_waited_for() {
    let mut reader = following();
    reader.sweep(|_| known(5, 6), at(1.0));
    reader.sweep(|_| known(5, 7), at(2.0));
    assert!(reader.switches().is_empty(), "a batch may be on its way");
    reader.sweep(|_| known(5, 8), at(3.0));
    assert_eq!(reader.switches(), [(rank(1), Some(Remedy::Behind))]);

    let mut reader = following();
    for second in 1..20 {
        // Busy, and never two sweeps behind.
        reader.sweep(|_| known(5 + second, 6 + second), at(second as f64));
    }
    assert!(reader.switches().is_empty());
}

#[test]
fn silence_and_an_absent_store_ask_the_workers() {
    let mut reader = following();
    reader.sweep(|_| known(5, 0), at(65.0));
    assert!(reader.switches().is_empty());
    reader.sweep(|_| known(5, 0), at(65.2));
    assert_eq!(reader.switches(), [(rank(1), Some(Remedy::Silent))]);

    let mut reader = following();
    reader.store_down(at(10.0));
    assert!(reader.reads(|_| known(5, 5), 10).is_empty());
    reader.sweep(|_| known(5, 5), at(10.5));
    assert!(reader.switches().is_empty(), "it may be back at once");
    reader.sweep(|_| known(5, 5), at(11.0));
    assert_eq!(reader.switches(), [(rank(1), Some(Remedy::Away))]);
}

#[test]
fn a_rank_that_comes_back_is_loaded_anew() {
    let mut reader = following();
    reader.members(&BTreeMap::from([(rank(1), 77)]), at(1.0));
    assert_eq!(reader.reads(|_| known(5, 5), 10), [Read::Load(rank(1))]);
}

#[derive(Debug, Clone)]
enum Event {
    Members(BTreeSet<u64>),
    Up,
    Down,
    Notified(u64),
    Sweep { behind: bool },
    Reads(usize),
    Loaded { rank: u64, found: bool },
    LoadsLost,
    Tail { rank: u64, first: u64 },
    Probed { rank: u64, there: bool },
    Refused(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = 1u64..6;
    let event = prop_oneof![
        1 => prop::collection::btree_set(1u64..6, 0..6).prop_map(Event::Members),
        2 => Just(Event::Up),
        1 => Just(Event::Down),
        1 => one.clone().prop_map(Event::Notified),
        1 => any::<bool>().prop_map(|behind| Event::Sweep { behind }),
        4 => (1usize..8).prop_map(Event::Reads),
        4 => (one.clone(), any::<bool>()).prop_map(|(rank, found)| Event::Loaded { rank, found }),
        1 => Just(Event::LoadsLost),
        2 => (one.clone(), 5u64..8).prop_map(|(rank, first)| Event::Tail { rank, first }),
        2 => (one.clone(), any::<bool>()).prop_map(|(rank, there)| Event::Probed { rank, there }),
        1 => one.prop_map(Event::Refused),
    ];
    prop::collection::vec(event, 0..200)
}

proptest! {
    #[test]
    fn loads_are_bounded_and_every_rank_has_one_source(events in events()) {
        let mut reader = Reader::new(2, at(0.0));
        let (mut now, mut loading, mut asked) = (0.0, BTreeSet::new(), BTreeSet::new());
        let mut members = BTreeSet::new();
        for event in events {
            now += 0.4;
            match event {
                Event::Members(ranks) => {
                    reader.members(&present(ranks.clone()), at(now));
                    loading.retain(|rank: &u64| ranks.contains(rank));
                    asked.retain(|rank: &u64| ranks.contains(rank));
                    members = ranks;
                }
                Event::Up => reader.store_up(),
                Event::Down => reader.store_down(at(now)),
                Event::Notified(n) => reader.notified(rank(n)),
                Event::Sweep { behind } => reader.sweep(|_| known(5, if behind { 9 } else { 5 }), at(now)),
                Event::Reads(most) => {
                    let reads = reader.reads(|_| known(5, 5), most);
                    prop_assert!(reads.len() <= most);
                    for read in reads {
                        let (Read::Load(rank) | Read::Tail { rank, .. } | Read::Probe { rank, .. }) = read;
                        let n = rank.instance.0;
                        prop_assert!(members.contains(&n));
                        prop_assert_eq!(asked.contains(&n), matches!(read, Read::Probe { .. }));
                        if matches!(read, Read::Load(_)) {
                            prop_assert!(loading.insert(n), "one load at a time");
                        }
                    }
                }
                Event::Loaded { rank: n, found } => {
                    let verdict = reader.loaded(rank(n), found.then_some(()).ok_or(Remedy::NoSnapshot), at(now));
                    let waited = loading.remove(&n) && !asked.contains(&n);
                    prop_assert_eq!(verdict == Verdict::Apply, waited && found);
                }
                Event::LoadsLost => {
                    reader.loads_lost();
                    loading.clear();
                }
                Event::Tail { rank: n, first } => {
                    let verdict = reader.tail(rank(n), 5, &[first], false, at(now));
                    prop_assert!(verdict == Verdict::Ignore || first == 6 && !asked.contains(&n));
                }
                Event::Probed { rank: n, there } => {
                    reader.probed(rank(n), mark(5), there.then(|| mark(5)), at(now));
                }
                Event::Refused(n) => reader.refused(rank(n), Remedy::Doubt),
            }
            for (rank, remedy) in reader.switches() {
                let n = rank.instance.0;
                let changed = if remedy.is_some() { asked.insert(n) } else { asked.remove(&n) };
                prop_assert!(changed, "told twice");
                // A load that goes on no longer counts.
                loading.remove(&n);
            }
            prop_assert!(loading.len() <= 2);
            prop_assert_eq!(reader.watched(), asked.len());
        }
    }
}
