//! Requests that are prefilled and decoded here.

use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::request::{FinishReason, Priority, Refusal, ResumedChoice};

use super::oracle::{config, prompt, root};
use super::world::World;

#[test]
fn a_request_gets_its_tokens_and_leaves_only_cached_blocks() {
    let mut world = World::new(config(16, 4));
    let submission = world.submission(prompt(0, 10), 1, 6);
    let id = world.submit(submission).unwrap();
    world.run();
    world.assert_outputs();
    world.assert_at_rest();
    let usage = world.clients[&id].usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached, usage.computed), (10, 0, 10));
    assert_eq!(usage.generated as usize, world.clients[&id].generated[&0].len());
}

#[test]
fn a_repeated_prompt_computes_only_what_is_not_cached() {
    let mut world = World::new(config(32, 4));
    for expected in [(0, 18), (16, 2)] {
        let submission = world.submission(prompt(0, 18), 1, 3);
        let id = world.submit(submission).unwrap();
        world.run();
        let usage = world.clients[&id].usage.unwrap();
        assert_eq!((usage.cached, usage.computed), expected);
    }
    world.assert_outputs();
}

#[test]
fn the_last_token_of_a_wholly_cached_prompt_is_computed_for_its_logits() {
    let mut world = World::new(config(32, 4));
    for expected in [(0, 16), (12, 4)] {
        let submission = world.submission(prompt(0, 16), 1, 1);
        let id = world.submit(submission).unwrap();
        world.run();
        let usage = world.clients[&id].usage.unwrap();
        assert_eq!((usage.cached, usage.computed), expected);
    }
}

#[test]
fn equal_tokens_of_another_tenant_are_not_reused() {
    let mut world = World::new(config(32, 4));
    for tenant in ["a", "b"] {
        let mut submission = world.submission(prompt(0, 16), 1, 1);
        submission.root = root(tenant);
        let id = world.submit(submission).unwrap();
        world.run();
        assert_eq!(world.clients[&id].usage.unwrap().cached, 0);
    }
    world.assert_outputs();
}

#[test]
fn choices_share_the_prompt_and_compute_it_once() {
    let mut world = World::new(config(32, 4));
    let submission = world.submission(prompt(0, 10), 4, 8);
    let id = world.submit(submission).unwrap();
    world.step();
    let plan_has_copies = world.start_step() && world.plan.as_ref().unwrap().copies.len() == 3;
    let going_on = 4 - world.clients[&id].ended.len();
    assert!(plan_has_copies || going_on < 4, "each further choice gets the partial tail");
    let active = world.scheduler.report(None, world.now).blocks_active;
    assert_eq!(active, 2 + going_on, "two full blocks shared, a tail each");
    world.run();
    world.assert_outputs();
    assert_eq!(world.clients[&id].usage.unwrap().computed, 10);
}

#[test]
fn preempted_requests_say_what_unpreempted_ones_would() {
    // Four sequences that grow to 40 tokens each want 40 blocks of 4; there are 14.
    let mut world = World::new(config(14, 4));
    for family in 0..4 {
        let mut submission = world.submission(prompt(family, 8), 1, 32);
        submission.stop.stop_token_ids = Arc::from([]);
        world.submit(submission).unwrap();
    }
    world.run();
    world.assert_outputs();
    world.assert_at_rest();
    let computed: u64 = world.clients.values().map(|client| client.usage.unwrap().computed).sum();
    assert!(computed > 32, "somebody was preempted and computed again: {computed}");
    let oldest = world.clients.values().next().unwrap().usage.unwrap();
    assert_eq!(oldest.computed, 8, "the oldest is never preempted");
}

#[test]
fn long_prompts_are_computed_in_chunks_beside_decoding() {
    let mut config = config(64, 4);
    config.max_batched_tokens = 16;
    config.max_running = 8;
    let mut world = World::new(config);
    let mut submission = world.submission(prompt(0, 4), 1, 30);
    submission.stop.stop_token_ids = Arc::from([]);
    let decoding = world.submit(submission).unwrap();
    world.step();
    let submission = world.submission(prompt(1, 100), 1, 2);
    let long = world.submit(submission).unwrap();
    let mut steps = 0;
    while world.clients[&long].generated[&0].is_empty() {
        let before = world.clients[&decoding].generated[&0].len();
        assert!(world.start_step());
        let plan = world.plan.as_ref().unwrap();
        assert_eq!(plan.chunks[0].request, decoding, "decode rows come first");
        assert!(plan.chunks.iter().map(|chunk| chunk.tokens.len()).sum::<usize>() <= 16);
        world.finish_step(None, None);
        assert_eq!(world.clients[&decoding].generated[&0].len(), before + 1, "decoding never stalls");
        steps += 1;
    }
    assert!(steps >= 7, "100 tokens beside a decode row need 7 steps of 16: {steps}");
    world.run();
    world.assert_outputs();
}

#[test]
fn the_queue_is_bounded_and_refuses_at_once() {
    let mut config = config(16, 4);
    config.max_waiting = 2;
    let mut world = World::new(config);
    for accepted in [true, true, false] {
        let submission = world.submission(prompt(0, 4), 1, 2);
        match world.submit(submission) {
            Ok(_) => assert!(accepted),
            Err(refusal) => assert!(!accepted && refusal == Refusal::QueueFull { limit: 2 }),
        }
    }
}

#[test]
fn a_reservation_is_taken_once() {
    let mut world = World::new(config(16, 4));
    let submission = world.submission(prompt(0, 4), 1, 2);
    world.submit(submission.clone()).unwrap();
    assert_eq!(world.submit(submission.clone()), Err(Refusal::Duplicate));
    world.run();
    assert_eq!(world.submit(submission.clone()), Err(Refusal::Duplicate), "remembered after its end");
    let mut again = submission;
    again.reservation.attempt = 1;
    assert!(world.submit(again).is_ok());
}

#[test]
fn senseless_requests_are_refused() {
    let mut world = World::new(config(4, 4));
    let mut refuse = |change: &dyn Fn(&mut armature_worker::domain::request::Submission)| {
        let mut submission = world.submission(prompt(0, 4), 1, 2);
        change(&mut submission);
        world.submit(submission).unwrap_err()
    };
    assert!(matches!(refuse(&|s| s.prompt = Arc::from([])), Refusal::Invalid(_)));
    assert!(matches!(refuse(&|s| s.choices.clear()), Refusal::Invalid(_)));
    assert!(matches!(refuse(&|s| s.choices.push(s.choices[0].clone())), Refusal::Invalid(_)));
    assert!(matches!(refuse(&|s| s.stop.max_tokens = 0), Refusal::Invalid(_)));
    let too_long = refuse(&|s| s.prompt = prompt(0, 16));
    assert_eq!(too_long, Refusal::ContextExceeded { tokens: 16, limit: 16 });
}

#[test]
fn a_drained_worker_refuses_and_finishes_what_it_has() {
    let mut world = World::new(config(16, 4));
    let submission = world.submission(prompt(0, 6), 1, 4);
    let id = world.submit(submission).unwrap();
    world.scheduler.drain(world.now);
    let submission = world.submission(prompt(0, 6), 1, 4);
    assert_eq!(world.submit(submission), Err(Refusal::Draining));
    world.run();
    assert!(world.clients[&id].is_over());
    world.assert_outputs();
}

#[test]
fn migrated_choices_go_on_elsewhere_with_the_same_tokens() {
    let mut world = World::new(config(32, 4));
    let mut submission = world.submission(prompt(0, 6), 2, 12);
    submission.stop.stop_token_ids = Arc::from([]);
    let first = world.submit(submission.clone()).unwrap();
    world.steps(5);
    world.scheduler.migrate_all(world.now);
    world.settle();
    assert!(world.clients[&first].ended.values().all(|finish| *finish == FinishReason::Migrate));
    let moved: Vec<ResumedChoice> = world.clients[&first]
        .generated
        .iter()
        .map(|(index, generated)| ResumedChoice { index: *index, generated: generated.clone() })
        .collect();
    assert!(moved.iter().all(|choice| !choice.generated.is_empty()));

    let mut elsewhere = World::new(config(32, 4));
    submission.choices = moved.clone();
    let second = elsewhere.submit(submission).unwrap();
    elsewhere.run();
    elsewhere.assert_outputs();
    let usage = elsewhere.clients[&second].usage.unwrap();
    let before: usize = moved.iter().map(|choice| choice.generated.len()).sum();
    assert_eq!(usage.generated as usize, 2 * 12 - before, "resumed tokens are not generated again");
}

#[test]
fn a_passed_deadline_ends_a_request() {
    let mut world = World::new(config(32, 4));
    let mut submission = world.submission(prompt(0, 6), 1, 1000);
    submission.stop.stop_token_ids = Arc::from([]);
    submission.deadline = Some(world.now + Duration::from_millis(20));
    let id = world.submit(submission).unwrap();
    assert_eq!(world.scheduler.next_wakeup(), world.now + Duration::from_millis(20));
    world.run();
    assert_eq!(world.clients[&id].ended[&0], FinishReason::Deadline);
    world.assert_at_rest();
}

#[test]
fn an_engine_failure_fails_only_what_was_in_the_step() {
    let mut config = config(32, 4);
    config.max_running = 1;
    let mut world = World::new(config);
    let submission = world.submission(prompt(0, 6), 1, 4);
    let failed = world.submit(submission).unwrap();
    let submission = world.submission(prompt(1, 6), 1, 4);
    let other = world.submit(submission).unwrap();
    world.start_step();
    world.fail_step();
    assert!(world.clients[&failed].failure.is_some());
    world.run();
    assert!(world.clients[&other].failure.is_none() && world.clients[&other].is_over());
    world.assert_outputs();
    world.assert_at_rest();
}

#[test]
fn a_higher_class_goes_first() {
    let mut config = config(32, 4);
    config.max_running = 1;
    let mut world = World::new(config);
    let mut ids = Vec::new();
    for priority in [0, 0, 1] {
        let mut submission = world.submission(prompt(7, 6), 1, 4);
        submission.priority = Priority(priority);
        ids.push(world.submit(submission).unwrap());
    }
    world.run();
    let order = |id| world.clients[&id].first_chunk.unwrap();
    assert!(order(ids[2]) < order(ids[0]) && order(ids[0]) < order(ids[1]));
}
