//! Requests that come from other workers: before new ones, and paced.

use armature_worker::domain::ids::RequestId;
use armature_worker::domain::request::Refusal;

use super::oracle::{config, prompt};
use super::world::World;

fn submit(world: &mut World, family: u32, len: usize, migrated: bool) -> Result<RequestId, Refusal> {
    let mut submission = world.submission(prompt(family, len), 1, 3);
    submission.migrated = migrated;
    world.submit(submission)
}

#[test]
fn a_migrated_request_is_admitted_before_new_ones_of_any_class() {
    let mut config = config(16, 4);
    config.max_running = 1;
    let mut world = World::new(config);
    let running = submit(&mut world, 0, 8, false).unwrap();
    world.step();
    let new = submit(&mut world, 1, 8, false).unwrap();
    let mut urgent = world.submission(prompt(2, 8), 1, 3);
    urgent.priority = armature_worker::domain::request::Priority(9);
    let urgent = world.submit(urgent).unwrap();
    let migrated = submit(&mut world, 3, 8, true).unwrap();
    world.run();
    world.assert_outputs();
    let first = |id| world.clients[&id].first_chunk.unwrap();
    assert!(first(running) < first(migrated) && first(migrated) < first(urgent));
    assert!(first(urgent) < first(new));
}

#[test]
fn a_lost_workers_streams_do_not_stop_new_requests() {
    let mut config = config(256, 4);
    config.max_batched_tokens = 24;
    config.max_running = 16;
    config.migrated_in_a_row = 2;
    let mut world = World::new(config);
    let migrated: Vec<RequestId> =
        (0..6).map(|family| submit(&mut world, family, 60, true).unwrap()).collect();
    let new = submit(&mut world, 9, 60, false).unwrap();
    world.run();
    world.assert_outputs();
    let first = |id: &RequestId| world.clients[id].first_chunk.unwrap();
    assert!(first(&migrated[1]) < first(&new), "they go first");
    assert!(first(&new) < first(&migrated[2]), "at their pace");
}

#[test]
fn migrated_requests_that_passed_nobody_are_not_counted() {
    let mut config = config(64, 4);
    config.max_running = 1;
    config.migrated_in_a_row = 2;
    let mut world = World::new(config);
    for family in 0..2 {
        submit(&mut world, family, 8, true).unwrap();
        world.run();
    }
    let running = submit(&mut world, 2, 8, true).unwrap();
    world.step();
    let new = submit(&mut world, 3, 8, false).unwrap();
    let migrated = submit(&mut world, 4, 8, true).unwrap();
    world.run();
    world.assert_outputs();
    let first = |id| world.clients[&id].first_chunk.unwrap();
    assert!(first(running) < first(migrated) && first(migrated) < first(new));
}

#[test]
fn new_requests_take_no_place_from_migrated_ones() {
    let mut config = config(16, 4);
    (config.max_running, config.max_waiting) = (3, 2);
    let mut world = World::new(config);
    for family in 0..2 {
        submit(&mut world, family, 4, false).unwrap();
    }
    assert_eq!(submit(&mut world, 2, 4, false), Err(Refusal::QueueFull { limit: 2 }));
    for family in 3..6 {
        submit(&mut world, family, 4, true).unwrap();
    }
    assert_eq!(submit(&mut world, 6, 4, true), Err(Refusal::QueueFull { limit: 3 }));
    world.run();
    world.assert_outputs();
    world.assert_at_rest();
}
