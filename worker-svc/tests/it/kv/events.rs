//! The event log tells a set that a reader can rebuild and verify.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use armature_worker::domain::kv_events::{KvBatch, KvEvents, KvEventsConfig, KvState, SequenceHash, Tier};
use armature_worker::domain::time::Time;
use proptest::prelude::*;

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn log() -> KvEvents {
    KvEvents::new(KvEventsConfig::default())
}

#[test]
fn changes_wait_for_others_but_not_long() {
    let mut log = log();
    log.stored(SequenceHash(1), Tier::DEVICE, at(10));
    assert_eq!(log.poll(at(59)), None);
    log.stored(SequenceHash(2), Tier::DEVICE, at(59));
    assert_eq!(log.next_due(), at(60));
    let batch = log.poll(at(60)).unwrap();
    assert_eq!((batch.number, batch.stored.len(), batch.count), (1, 2, 2));
    assert_eq!(log.poll(at(60)), None);
}

#[test]
fn what_is_undone_in_time_is_never_said() {
    let mut log = log();
    log.stored(SequenceHash(1), Tier::DEVICE, at(0));
    log.removed(SequenceHash(1), Tier::DEVICE, at(1));
    assert_eq!(log.poll(at(60)), None);
    log.stored(SequenceHash(1), Tier::DEVICE, at(60));
    log.poll(at(200)).unwrap();
    log.removed(SequenceHash(1), Tier::DEVICE, at(201));
    log.stored(SequenceHash(1), Tier::DEVICE, at(202));
    assert_eq!(log.poll(at(300)), None);
}

#[test]
fn a_batch_is_cut_at_its_size() {
    let mut log = log();
    for hash in 0..10_000 {
        log.stored(SequenceHash(hash), Tier::DEVICE, at(0));
    }
    let sizes: Vec<usize> = std::iter::from_fn(|| log.poll(at(0))).map(|batch| batch.stored.len()).collect();
    assert_eq!(sizes, [64 * 1024 / 9], "the rest waits its turn");
    assert_eq!(log.poll(at(50)).unwrap().stored.len(), 10_000 - 64 * 1024 / 9);
}

#[test]
fn an_idle_log_gives_a_sign_of_life() {
    let mut log = log();
    assert_eq!(log.poll(at(29_999)), None);
    let batch = log.poll(at(30_000)).unwrap();
    assert_eq!((batch.number, batch.count, batch.digest), (1, 0, 0));
    assert!(batch.stored.is_empty() && batch.removed.is_empty());
}

#[test]
fn readers_resume_inside_the_ring_only() {
    let mut log = KvEvents::new(KvEventsConfig { ring: 3, ..KvEventsConfig::default() });
    assert_eq!(log.resume(1), Some(Vec::new()));
    for number in 1..=5 {
        log.stored(SequenceHash(number), Tier::DEVICE, at(100 * number));
        log.poll(at(100 * number + 50)).unwrap();
    }
    let numbers =
        |batches: Vec<std::sync::Arc<KvBatch>>| batches.iter().map(|b| b.number).collect::<Vec<_>>();
    assert_eq!(log.resume(3).map(numbers), Some(vec![3, 4, 5]));
    assert_eq!(log.resume(6).map(numbers), Some(vec![]));
    assert_eq!(log.resume(2), None, "forgotten");
    assert_eq!(log.resume(7), None, "never was");
}

#[test]
fn a_new_incarnation_tells_the_whole_set_from_batch_1_parents_first() {
    let mut log = log();
    // A parent that is undone and stored again, and its child, come to be in one moment.
    log.stored(SequenceHash(9), Tier::DEVICE, at(0));
    log.stored(SequenceHash(5), Tier::DEVICE, at(0));
    log.poll(at(50)).unwrap();
    for hash in [5, 9] {
        log.removed(SequenceHash(hash), Tier::DEVICE, at(60));
    }
    for hash in [9, 5, 3] {
        log.stored(SequenceHash(hash), Tier::DEVICE, at(61));
    }
    log.begin_anew(at(70));
    assert_eq!(log.last_state(), KvState { batch: 0, count: 0, digest: 0 });
    assert_eq!(log.resume(2), None, "batches of the last incarnation are nobody's");
    let batch = log.poll(at(120)).unwrap();
    let stored: Vec<u64> = batch.stored.iter().map(|(hash, _)| hash.0).collect();
    assert_eq!((batch.number, stored, batch.count), (1, vec![9, 5, 3], 3));
    assert_eq!(batch.digest, armature_kv_hash::set_digest([(9, 1), (5, 1), (3, 1)]));
}

proptest! {
    #[test]
    fn a_replay_is_the_set_with_count_and_digest(
        ops in proptest::collection::vec((0..12u64, 0..2u8, any::<bool>(), 0..40u64), 1..200),
    ) {
        let mut log = KvEvents::new(KvEventsConfig { max_bytes: 40, ..KvEventsConfig::default() });
        let mut blocks: BTreeMap<(SequenceHash, Tier), u32> = BTreeMap::new();
        let mut replayed: HashSet<(SequenceHash, Tier)> = HashSet::new();
        let (mut now, mut last) = (0, 0);
        let mut replay = |batch: &KvBatch| {
            assert_eq!(batch.number, last + 1);
            last = batch.number;
            batch.stored.iter().for_each(|entry| assert!(replayed.insert(*entry)));
            batch.removed.iter().for_each(|entry| assert!(replayed.remove(entry)));
            let digest = armature_kv_hash::set_digest(replayed.iter().map(|(hash, tier)| (hash.0, tier.0)));
            assert_eq!((batch.count, batch.digest), (replayed.len() as u64, digest));
        };
        for (hash, tier, store, pass) in ops {
            now += pass;
            let entry = (SequenceHash(hash), Tier(tier));
            let held = blocks.entry(entry).or_default();
            if store {
                *held += 1;
                log.stored(entry.0, entry.1, at(now));
            } else {
                *held = held.saturating_sub(1);
                log.removed(entry.0, entry.1, at(now));
            }
            while let Some(batch) = log.poll(at(now)) {
                replay(&batch);
            }
        }
        let (snapshot, batches) = log.snapshot(at(now));
        batches.iter().for_each(|batch| replay(batch));
        let expected: Vec<_> = blocks.into_iter().filter(|(_, held)| *held > 0).map(|(entry, _)| entry).collect();
        prop_assert_eq!(&snapshot.entries, &expected);
        prop_assert_eq!(snapshot.at, last);
        prop_assert_eq!(replayed.len(), expected.len());
    }

    #[test]
    fn no_change_waits_longer_than_the_delay(ops in proptest::collection::vec((0..8u64, any::<bool>(), 0..20u64), 1..80)) {
        let mut log = log();
        let mut now = 0;
        for (hash, store, pass) in ops {
            now += pass;
            if store { log.stored(SequenceHash(hash), Tier::DEVICE, at(now)) } else { log.removed(SequenceHash(hash), Tier::DEVICE, at(now)) }
        }
        while log.poll(at(now + 50)).is_some() {}
        let (_, rest) = log.snapshot(at(now) + Duration::from_millis(50));
        prop_assert!(rest.is_empty());
    }
}
