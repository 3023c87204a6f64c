//! The prefix cache decides by tokens and evicts leaves, the colder segment first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::BlockId;
use armature_worker::domain::kv_events::{KvEventsConfig, SequenceHash, Tier};
use armature_worker::domain::kv_store::KvStore;
use armature_worker::domain::prefix_cache::{Eviction, Inserted};
use armature_worker::domain::request::CacheRoot;
use armature_worker::domain::time::Time;
use proptest::prelude::*;

fn root(tenant: &str) -> Arc<CacheRoot> {
    Arc::new(CacheRoot {
        model_digest: vec![1; 32],
        adapter_digest: Vec::new(),
        tenant: tenant.to_owned(),
        cache_salt: String::new(),
    })
}

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

/// Holds the cached prefix of one-token blocks, computes the rest, caches it, and lets go.
fn visit(kv: &mut KvStore, root: &Arc<CacheRoot>, tokens: &[u32], hash: u64, now: Time) -> usize {
    let mut table = kv.longest_prefix(root, tokens.iter().copied(), tokens.len());
    let matched = table.len();
    if !kv.reserve(&table, tokens.len() - matched, 0, true, now) {
        return matched;
    }
    for (index, token) in tokens.iter().enumerate().skip(matched) {
        let block = kv.take_promised(now);
        let parent = index.checked_sub(1).map(|above| table[above]);
        let label = SequenceHash(hash + index as u64);
        let inserted = kv.cache_block(root, parent, Arc::from([*token]), block, label, now);
        assert_eq!(inserted, Inserted::New);
        table.push(block);
    }
    for block in table.into_iter().rev() {
        kv.release(block, now);
    }
    kv.check().unwrap();
    matched
}

fn cached(kv: &KvStore, root: &Arc<CacheRoot>, tokens: &[u32]) -> usize {
    kv.longest_prefix(root, tokens.iter().copied(), tokens.len()).len()
}

#[test]
fn equal_hashes_are_not_equal_tokens() {
    let mut kv = KvStore::new(8, 1, Eviction::TwoSegment, KvEventsConfig::default());
    let root = root("a");
    visit(&mut kv, &root, &[1, 2], 77, at(1));
    visit(&mut kv, &root, &[3, 4], 77, at(2));
    assert_eq!(cached(&kv, &root, &[3, 4]), 2);
    assert_eq!(cached(&kv, &root, &[1, 4]), 1, "found by tokens, not by the equal hash");
    assert_eq!(kv.events().present(), 2, "one entry of the set for both blocks of a hash");
}

#[test]
fn roots_are_compared_in_full() {
    let mut kv = KvStore::new(8, 1, Eviction::TwoSegment, KvEventsConfig::default());
    visit(&mut kv, &root("a"), &[1, 2], 0, at(1));
    assert_eq!(cached(&kv, &root("a"), &[1, 2]), 2);
    assert_eq!(cached(&kv, &root("b"), &[1, 2]), 0);
}

#[test]
fn leaves_go_before_their_parents() {
    let mut kv = KvStore::new(4, 1, Eviction::TwoSegment, KvEventsConfig::default());
    let root = root("a");
    visit(&mut kv, &root, &[1, 2, 3, 4], 0, at(1));
    for left in [3, 2, 1] {
        assert!(kv.reserve(&[], 1, 0, false, at(2)));
        kv.take_promised(at(2));
        assert_eq!(cached(&kv, &root, &[1, 2, 3, 4]), left);
    }
}

#[test]
fn a_block_that_was_hit_lives_twice_as_long_unless_the_oldest_goes() {
    use Eviction::{Lru, TwoSegment};
    // [1] was hit and last used at 50, [2] was not; one is evicted at 250.
    for (eviction, second_used_at, left) in
        [(TwoSegment, 180, (0, 1)), (TwoSegment, 150, (1, 0)), (TwoSegment, 100, (1, 0)), (Lru, 100, (0, 1))]
    {
        let mut kv = KvStore::new(2, 1, eviction, KvEventsConfig::default());
        let root = root("a");
        visit(&mut kv, &root, &[1], 10, at(0));
        visit(&mut kv, &root, &[1], 10, at(50));
        visit(&mut kv, &root, &[2], 20, at(second_used_at));
        assert!(kv.reserve(&[], 1, 0, false, at(250)));
        kv.take_promised(at(250));
        let got = (cached(&kv, &root, &[1]), cached(&kv, &root, &[2]));
        assert_eq!(got, left, "200/2 against {}/1", 250 - second_used_at);
    }
}

#[test]
fn a_promise_counts_idle_blocks_that_a_match_takes_away() {
    let mut kv = KvStore::new(4, 1, Eviction::TwoSegment, KvEventsConfig::default());
    let root = root("a");
    visit(&mut kv, &root, &[1, 2, 3], 0, at(1));
    let matched = kv.longest_prefix(&root, [1, 2, 3].into_iter(), 3);
    assert!(!kv.reserve(&matched, 2, 0, true, at(2)), "three idle are held, one is left");
    assert!(kv.reserve(&matched, 1, 0, true, at(2)));
    assert_eq!(kv.pool().available(), 0);
    assert_eq!(kv.take(at(2)), None, "what is promised is not taken by others");
    assert_eq!(kv.take_promised(at(2)), BlockId(3));
}

proptest! {
    /// Against a model that knows for each cached sequence of one-token blocks its last use.
    #[test]
    fn nothing_held_is_evicted_and_the_books_agree(
        blocks in 4..20usize,
        eviction in prop_oneof![Just(Eviction::TwoSegment), Just(Eviction::Lru)],
        visits in proptest::collection::vec((proptest::collection::vec(0..3u32, 1..5), 0..2u8, 1..50u64), 1..120),
    ) {
        let mut kv = KvStore::new(blocks, 1, eviction, KvEventsConfig::default());
        let roots = [root("a"), root("b")];
        let mut labels: BTreeMap<(u8, Vec<u32>), u64> = BTreeMap::new();
        let mut now = 0;
        for (tokens, tenant, pass) in visits {
            now += pass;
            let root = &roots[usize::from(tenant)];
            // A label per prefix, so that the event set has one entry per block.
            let table = kv.longest_prefix(root, tokens.iter().copied(), tokens.len());
            let (mut table, matched) = (table.clone(), table.len());
            prop_assert!(kv.reserve(&table, tokens.len() - matched, 0, true, at(now)) == (tokens.len() <= blocks));
            for index in matched..tokens.len() {
                let held = table.clone();
                let block = kv.take_promised(at(now));
                prop_assert!(!held.contains(&block), "a held block was evicted");
                let next = labels.len() as u64;
                let label = *labels.entry((tenant, tokens[..=index].to_vec())).or_insert(next);
                let parent = index.checked_sub(1).map(|above| table[above]);
                kv.cache_block(root, parent, Arc::from([tokens[index]]), block, SequenceHash(label), at(now));
                table.push(block);
            }
            for block in table.into_iter().rev() {
                kv.release(block, at(now));
            }
            kv.check().map_err(TestCaseError::fail)?;
            prop_assert_eq!(cached(&kv, root, &tokens), tokens.len());
            prop_assert_eq!(kv.pool().active(), 0);
        }
        let (snapshot, _) = kv.events().snapshot(at(now) + Duration::from_secs(1));
        prop_assert_eq!(snapshot.entries.len(), kv.cache().len());
        prop_assert!(snapshot.entries.iter().all(|(_, tier)| *tier == Tier::DEVICE));
    }
}
