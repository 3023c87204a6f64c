//! Both sides of a hand-off.

use std::sync::Arc;

use armature_worker::domain::request::{Failure, FinishReason, Refusal, RequestKind};
use armature_worker::domain::scheduler::{Fallback, LandingError};

use super::oracle::{config, prompt, sampled};
use super::world::World;

fn landing(
    world: &mut World,
    len: usize,
    n: u32,
    max_tokens: u32,
) -> armature_worker::domain::ids::RequestId {
    let mut submission = world.submission(prompt(0, len), n, max_tokens);
    submission.kind = RequestKind::Landing;
    submission.stop.stop_token_ids = Arc::from([]);
    world.submit(submission).unwrap()
}

fn source(
    world: &mut World,
    family: u32,
    len: usize,
) -> Result<armature_worker::domain::ids::RequestId, Refusal> {
    let mut submission = world.submission(prompt(family, len), 1, 4);
    submission.kind = RequestKind::Source { from_token: 0 };
    world.submit(submission)
}

#[test]
fn a_landed_prompt_is_decoded_without_computing_it() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 2, 5);
    world.run();
    world.finish_everything();
    world.assert_outputs();
    let usage = world.clients[&id].usage.unwrap();
    assert_eq!((usage.transferred, usage.computed, usage.generated), (30, 0, 10));
}

#[test]
fn the_first_token_does_not_wait_for_the_transfer() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 1, 5);
    world.run();
    world.first_tokens_early(id, 1);
    assert_eq!(world.clients[&id].generated[&0].len(), 1);
    assert!(!world.step(), "nothing is computed before the KV is there");
    world.finish_everything();
    world.assert_outputs();
}

#[test]
fn only_the_missing_range_is_asked_for_and_landed_blocks_are_reused() {
    let mut world = World::new(config(64, 4));
    landing(&mut world, 30, 1, 1);
    world.finish_everything();
    let id = landing(&mut world, 30, 1, 5);
    world.finish_everything();
    world.assert_outputs();
    assert_eq!(world.clients[&id].usage.unwrap().cached, 0, "the first one's transfer was aborted");
    let id = landing(&mut world, 30, 1, 5);
    world.finish_everything();
    assert_eq!(world.clients[&id].usage.unwrap().cached, 28);
    assert_eq!(world.clients[&id].usage.unwrap().transferred, 2);
}

#[test]
fn landed_blocks_are_cached_and_told_only_when_the_transfer_is_committed() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 2, 20);
    world.run();
    while world.landings() == [id] && world.clients[&id].generated[&0].len() < 10 {
        world.advance_landing(id, true, true);
        let is_committed = world.landings().is_empty();
        assert_eq!(world.scheduler.kv_events().present() > 0, is_committed);
        if !is_committed {
            world.steps(3);
            assert_eq!(world.scheduler.kv_events().present(), 0, "decoding alone caches nothing");
        }
    }
    assert!(world.scheduler.kv_events().present() >= 7, "the full blocks of the prompt");
    world.finish_everything();
    world.assert_outputs();
}

#[test]
fn absent_first_tokens_are_sampled_here_from_the_last_prompt_token() {
    for keep in 0..3 {
        for len in [7, 8] {
            let mut world = World::new(config(64, 4));
            let id = landing(&mut world, len, 3, 5);
            world.run();
            world.first_tokens_early(id, keep);
            world.finish_everything();
            world.assert_outputs();
            assert_eq!(world.clients[&id].usage.unwrap().computed, 1, "{keep} {len}");
        }
    }
}

#[test]
fn a_transfer_is_aborted_when_the_first_tokens_end_every_choice() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 2, 1);
    world.run();
    world.advance_landing(id, true, true);
    assert!(world.scheduler.report(None, world.now).blocks_active > 0);
    world.first_tokens_early(id, 2);
    assert!(world.clients[&id].is_over());
    let report = world.scheduler.report(None, world.now);
    assert_eq!(report.blocks_active, 0);
    assert!(report.blocks_quarantined > 0, "granted blocks may still be written");
    world.finish_everything();
}

#[test]
fn windows_pass_a_prompt_longer_than_the_grant_budget() {
    let mut world = World::new(config(40, 4));
    // 36 of 40 blocks, while 10 may be granted at once.
    let id = landing(&mut world, 141, 1, 5);
    world.finish_everything();
    world.assert_outputs();
    assert_eq!(world.clients[&id].usage.unwrap().transferred, 141);
}

#[test]
fn a_landing_that_cannot_be_promised_waits() {
    let mut world = World::new(config(20, 4));
    landing(&mut world, 60, 1, 2);
    let second = landing(&mut world, 40, 1, 2);
    world.run();
    assert_eq!(world.landings().len(), 1);
    assert_eq!(world.scheduler.report(None, world.now).waiting, 1);
    world.finish_everything();
    world.assert_outputs();
    assert!(world.clients[&second].is_over());
}

#[test]
fn a_failed_transfer_is_prefilled_here_and_tells_nothing_twice() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 2, 5);
    world.run();
    world.first_tokens_early(id, 1);
    world.advance_landing(id, true, true);
    world.fail_landing(id, true);
    assert!(world.scheduler.report(None, world.now).blocks_quarantined > 0);
    world.finish_everything();
    world.assert_outputs();
    assert!(world.clients[&id].failure.is_none());
    assert_eq!(world.clients[&id].usage.unwrap().generated, 10);
}

#[test]
fn a_failed_transfer_may_fail_the_request() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 2, 5);
    world.run();
    world.fail_landing(id, false);
    assert_eq!(world.clients[&id].failure, Some(Failure::PrefillLost("peer died".to_owned())));
    world.finish_everything();
}

#[test]
fn inputs_out_of_order_are_errors_and_change_nothing() {
    let mut world = World::new(config(64, 4));
    let id = landing(&mut world, 30, 1, 5);
    let now = world.now;
    assert_eq!(world.scheduler.landing_begin(id, now), Err(LandingError::Unknown), "not admitted yet");
    world.run();
    assert!(matches!(world.scheduler.landing_complete(id, now), Err(LandingError::WrongPhase(_))));
    world.advance_landing(id, true, true);
    assert!(matches!(world.scheduler.landing_begin(id, now), Err(LandingError::WrongPhase(_))));
    let missing = world.scheduler.landing_complete(id, now);
    assert_eq!(missing, Err(LandingError::Incomplete { landed: 0, tokens: 30 }));
    assert!(matches!(world.scheduler.landing_committed(id, now), Err(LandingError::WrongPhase(_))));
    world.scheduler.cancel(id, now);
    world.settle();
    let late = world.scheduler.landing_first_tokens(id, vec![(0, sampled(5))], now);
    assert_eq!(late, Err(LandingError::Unknown));
    assert_eq!(world.scheduler.landing_failed(id, Fallback::Local, now), Err(LandingError::Unknown));
    world.finish_everything();
}

#[test]
fn a_source_computes_samples_and_holds() {
    let mut world = World::new(config(64, 4));
    let id = source(&mut world, 0, 30).unwrap();
    world.run();
    assert_eq!(world.clients[&id].generated[&0].len(), 1);
    assert!(!world.clients[&id].is_over());
    assert_eq!(world.scheduler.report(None, world.now).blocks_active, 8, "pinned until released");
    world.release_source(id);
    assert!(world.clients[&id].is_over());
    world.assert_at_rest();
    world.assert_outputs();
}

#[test]
fn sources_without_a_grant_hold_a_bounded_part_of_the_pool() {
    let mut world = World::new(config(64, 4));
    let first = source(&mut world, 0, 60).unwrap();
    source(&mut world, 1, 60).unwrap();
    world.run();
    let refusal = source(&mut world, 2, 60).unwrap_err();
    assert_eq!(refusal, Refusal::PrefillBackpressure { pinned: 30, limit: 32 });
    world.scheduler.source_granted(first, world.now);
    source(&mut world, 2, 60).unwrap();
    world.finish_everything();
}

#[test]
fn what_a_source_has_told_stays_when_it_ends() {
    let mut world = World::new(config(64, 4));
    let mut submission = world.submission(prompt(0, 30), 1, 4);
    submission.kind = RequestKind::Source { from_token: 0 };
    let id = world.submit(submission).unwrap();
    world.step();
    world.scheduler.migrate_all(world.now);
    world.settle();
    assert_eq!(world.scheduler.report(None, world.now).blocks_active, 8);
    world.release_source(id);
    world.assert_at_rest();

    let mut config = config(64, 4);
    config.max_running = 1;
    config.max_batched_tokens = 5;
    let mut world = World::new(config);
    let id = source(&mut world, 0, 30).unwrap();
    world.step();
    world.scheduler.migrate_all(world.now);
    world.settle();
    assert_eq!(world.clients[&id].ended[&0], FinishReason::Migrate);
    assert!(world.clients[&id].is_over());
    assert!(!world.step(), "it computes no further");
    assert!(world.scheduler.report(None, world.now).blocks_active > 0, "a peer may be reading");
    world.release_source(id);
    world.assert_at_rest();
}

#[test]
fn a_cancelled_source_stays_pinned_until_its_peer_has_stopped_reading() {
    let mut config = config(64, 4);
    config.max_running = 1;
    config.max_batched_tokens = 5;
    for steps in [1, 100] {
        let mut world = World::new(config.clone());
        let id = source(&mut world, 0, 30).unwrap();
        world.steps(steps);
        let pinned = world.scheduler.report(None, world.now).blocks_active;
        world.scheduler.cancel(id, world.now);
        world.settle();
        assert!(!world.step(), "it computes no further");
        assert!(pinned > 0 && world.scheduler.report(None, world.now).blocks_active > 0);
        world.release_source(id);
        world.assert_at_rest();
    }
}
