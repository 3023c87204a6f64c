//! Arbitrary interleavings of everything that can happen, each step verified by the world.

use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::RequestId;
use armature_worker::domain::request::{Priority, RequestKind, ResumedChoice};
use proptest::prelude::*;
use proptest::sample::Index;

use super::oracle::{config, oracle, prompt, root};
use super::world::World;

#[derive(Debug, Clone)]
struct NewRequest {
    kind: u8,
    family: u32,
    len: usize,
    n: u32,
    max_tokens: u32,
    priority: i8,
    tenant: u8,
    resumed: usize,
    migrated: bool,
    deadline: Option<u64>,
}

#[derive(Debug, Clone)]
enum Op {
    Submit(NewRequest),
    Plan,
    Commit { dropped: Option<usize>, unsampled: Option<usize> },
    Step,
    FailStep,
    Cancel(Index),
    CancelChoice(Index, u32),
    AdvanceLanding { which: Index, first_tokens: bool, commit: bool },
    EarlyFirstTokens(Index, usize),
    FailLanding(Index, bool),
    ReleaseQuarantine(Index),
    GrantSource(Index),
    ReleaseSource(Index),
    Pass(u64),
    Events,
    Report,
    Drain,
    MigrateAll,
    Fence,
}

fn request() -> impl Strategy<Value = NewRequest> {
    let resumed = prop_oneof![4 => Just(0usize), 1 => 1..6usize];
    let deadline = prop_oneof![6 => Just(None), 1 => (1..40u64).prop_map(Some)];
    let resumed = (resumed, proptest::bool::weighted(0.3));
    (0..6u8, 0..3u32, 1..50usize, 1..4u32, 1..24u32, -1..2i8, 0..2u8, resumed, deadline).prop_map(
        |(kind, family, len, n, max_tokens, priority, tenant, (resumed, migrated), deadline)| NewRequest {
            kind,
            family,
            len,
            n,
            max_tokens,
            priority,
            tenant,
            resumed,
            migrated,
            deadline,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    prop_oneof![
        12 => request().prop_map(Op::Submit),
        8 => Just(Op::Plan),
        8 => (proptest::option::weighted(0.1, 0..8usize), proptest::option::weighted(0.05, 0..8usize))
            .prop_map(|(dropped, unsampled)| Op::Commit { dropped, unsampled }),
        20 => Just(Op::Step),
        1 => Just(Op::FailStep),
        3 => index().prop_map(Op::Cancel),
        2 => (index(), 0..3u32).prop_map(|(which, choice)| Op::CancelChoice(which, choice)),
        16 => (index(), any::<bool>(), any::<bool>())
            .prop_map(|(which, first_tokens, commit)| Op::AdvanceLanding { which, first_tokens, commit }),
        2 => (index(), 0..4usize).prop_map(|(which, keep)| Op::EarlyFirstTokens(which, keep)),
        2 => (index(), any::<bool>()).prop_map(|(which, local)| Op::FailLanding(which, local)),
        3 => index().prop_map(Op::ReleaseQuarantine),
        3 => index().prop_map(Op::GrantSource),
        3 => index().prop_map(Op::ReleaseSource),
        3 => (1..30u64).prop_map(Op::Pass),
        3 => Just(Op::Events),
        2 => Just(Op::Report),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Draining, migrating and fencing change everything that follows: once, at some place, in some runs.
    let rare = prop_oneof![8 => Just(None), 1 => Just(Some(Op::Drain)), 1 => Just(Some(Op::MigrateAll)), 1 => Just(Some(Op::Fence))];
    (proptest::collection::vec(op(), 1..160), rare, any::<Index>()).prop_map(|(mut ops, rare, at)| {
        if let Some(rare) = rare {
            ops.insert(at.index(ops.len()), rare);
        }
        ops
    })
}

fn pick(from: &[RequestId], which: Index) -> Option<RequestId> {
    (!from.is_empty()).then(|| from[which.index(from.len())])
}

fn submit(world: &mut World, new: &NewRequest) {
    let tokens = prompt(new.family, new.len);
    let mut submission = world.submission(Arc::clone(&tokens), new.n, new.max_tokens);
    submission.kind = match new.kind {
        0..=2 => RequestKind::Local,
        3..=4 => RequestKind::Landing,
        _ => RequestKind::Source { from_token: new.len / 2 },
    };
    submission.root = root(if new.tenant == 0 { "a" } else { "b" });
    submission.priority = Priority(new.priority);
    submission.migrated = new.migrated;
    submission.deadline = new.deadline.map(|millis| world.now + Duration::from_millis(millis));
    if new.resumed > 0 {
        if submission.kind != RequestKind::Local {
            submission.choices.truncate(1);
        }
        // What an earlier worker would have generated: a prefix of the oracle, for the first choice.
        let fresh = ResumedChoice { index: 0, generated: Vec::new() };
        let context = world.scheduler.context_length();
        let (all, _) = oracle(&submission.root, &tokens, &fresh, &submission.stop, context.max(new.len + 1));
        submission.choices[0].generated = all[..new.resumed.min(all.len())].to_vec();
    }
    let _ = world.submit(submission);
}

fn apply(world: &mut World, op: &Op) {
    let known: Vec<RequestId> = world.clients.keys().copied().collect();
    match op {
        Op::Submit(new) => submit(world, new),
        Op::Plan => {
            world.start_step();
        }
        Op::Commit { dropped, unsampled } => world.finish_step(*dropped, *unsampled),
        Op::Step => world.steps(1),
        Op::FailStep => world.fail_step(),
        Op::Cancel(which) => {
            if let Some(request) = pick(&known, *which) {
                world.scheduler.cancel(request, world.now);
            }
        }
        Op::CancelChoice(which, choice) => {
            if let Some(request) = pick(&known, *which) {
                world.scheduler.cancel_choice(request, *choice, world.now);
            }
        }
        Op::AdvanceLanding { which, first_tokens, commit } => {
            if let Some(request) = pick(&world.landings(), *which) {
                world.advance_landing(request, *first_tokens, *commit);
            }
        }
        Op::EarlyFirstTokens(which, keep) => {
            if let Some(request) = pick(&world.landings(), *which) {
                world.first_tokens_early(request, *keep);
            }
        }
        Op::FailLanding(which, local) => {
            if let Some(request) = pick(&known, *which) {
                world.fail_landing(request, *local);
            }
        }
        Op::ReleaseQuarantine(which) => {
            if let Some(request) = pick(&world.landings(), *which) {
                world.release_quarantine(request);
            }
        }
        Op::GrantSource(which) => {
            if let Some(request) = pick(&world.sources(), *which) {
                world.scheduler.source_granted(request, world.now);
            }
        }
        Op::ReleaseSource(which) => {
            if let Some(request) = pick(&world.sources(), *which) {
                world.release_source(request);
            }
        }
        Op::Pass(millis) => world.now = world.now + Duration::from_millis(*millis),
        Op::Events => world.replay_events(false),
        Op::Report => {
            let report = world.scheduler.report(None, world.now);
            let blocks = report.blocks_active + report.blocks_cached + report.blocks_free;
            assert_eq!(blocks + report.blocks_quarantined, world.scheduler.config().blocks);
        }
        Op::Drain => world.scheduler.drain(world.now),
        Op::MigrateAll => world.scheduler.migrate_all(world.now),
        Op::Fence => {
            world.scheduler.migrate_all(world.now);
            world.begin_events_anew();
        }
    }
    world.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(200), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_leaked_repeated_or_read_too_early(
        blocks in 6..40usize,
        block_size in 1..6usize,
        max_running in 3..8usize,
        ops in ops(),
    ) {
        let mut config = config(blocks, block_size);
        config.max_running = max_running;
        config.max_batched_tokens = 24;
        config.max_waiting = 12;
        config.migrated_in_a_row = 2;
        config.ageing = Duration::from_millis(20);
        let mut world = World::new(config);
        for op in &ops {
            apply(&mut world, op);
        }
        world.finish_everything();
        world.assert_outputs();
    }

    #[test]
    fn one_class_is_served_first_in_first_out(
        blocks in 8..40usize,
        requests in proptest::collection::vec((0..3u32, 1..40usize, 1..12u32, 0..4u64), 1..30),
    ) {
        let mut config = config(blocks, 4);
        config.max_running = 4;
        config.max_batched_tokens = 16;
        let mut world = World::new(config);
        for (family, len, max_tokens, steps) in requests {
            let submission = world.submission(prompt(family, len), 1, max_tokens);
            let _ = world.submit(submission);
            world.steps(steps);
        }
        world.finish_everything();
        world.assert_outputs();
        let order: Vec<u64> = world.clients.values().filter_map(|client| client.first_chunk).collect();
        prop_assert_eq!(order.len(), world.clients.len());
        prop_assert!(order.is_sorted(), "{:?}", order);
    }

    #[test]
    fn a_low_class_waits_no_longer_than_ageing_allows(every in 1..4u64, high in 1..4i8) {
        let mut config = config(8, 4);
        config.max_running = 1;
        config.max_waiting = 1000;
        config.ageing = Duration::from_millis(50);
        let mut world = World::new(config);
        let low = world.submission(prompt(0, 9), 1, 3);
        let mut first = None;
        for i in 0..400u32 {
            let mut submission = world.submission(prompt(1 + i, 9), 1, 3);
            submission.priority = Priority(high);
            world.submit(submission).unwrap();
            if i == 3 {
                first = Some((world.submit(low.clone()).unwrap(), world.now));
            }
            world.steps(every);
        }
        let (low, arrived) = first.unwrap();
        let yields_until = arrived + Duration::from_millis(50) * u32::from(high as u8);
        world.finish_everything();
        let served = world.clients[&low].first_chunk.unwrap();
        let passed = world.clients.iter().filter(|(id, client)| **id > low && client.first_chunk.unwrap() < served);
        for (id, _) in passed {
            prop_assert!(world.arrived[id] < yields_until, "{id:?} came later and passed");
        }
    }
}
