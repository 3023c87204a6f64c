//! Whole containers killed, cut off and brought back under a load of streams: no stream fails or says anything else, nothing healthy restarts,
//! and afterwards every router knows every worker's blocks by count and digest.

use std::time::Duration;

use armature_containers::container::Container;
use armature_containers::fleet::{Fleet, TTL_SECONDS};
use armature_containers::load::Load;
use armature_containers::views;
use futures_util::future::join_all;

/// Workers of the simulated fleet.
const WORKERS: usize = 4;
/// Streams after a fault: each of the load's places has come round.
const ROUND: u64 = 8;

/// A fleet under load.
struct Rig {
    fleet: Fleet,
    load: Load,
    /// What runs, and since when.
    before: Vec<(Container, String)>,
}

impl Rig {
    async fn start() -> Self {
        let fleet = Fleet::sim().await;
        views::agree(&fleet, WORKERS).await;
        let load = Load::start(&fleet.client, fleet.model).await;
        load.streams(ROUND).await;
        let ours = fleet.ours().await;
        let since = join_all(ours.iter().map(Container::incarnation)).await;
        Self { fleet, load, before: ours.into_iter().zip(since).collect() }
    }

    /// Ends the load and checks everything; `touched` containers may have restarted.
    async fn end(self, touched: &[Container]) {
        self.load.streams(ROUND).await;
        let finished = self.load.finish().await;
        assert!(finished >= 3 * ROUND, "only {finished} streams");
        for (container, since) in &self.before {
            if !touched.contains(container) {
                assert_eq!(container.incarnation().await, *since, "{} has restarted", container.name().await);
            }
        }
        views::agree(&self.fleet, WORKERS).await;
    }
}

#[tokio::test]
async fn redis_killed_and_back_empty_costs_nothing() {
    let rig = Rig::start().await;
    let redis = rig.fleet.only("redis").await;
    redis.kill().await;
    rig.load.streams(ROUND).await;
    redis.start().await;
    redis.healthy().await;
    rig.end(&[]).await;
}

#[tokio::test]
async fn consul_away_for_30_seconds_and_back_empty_costs_nothing() {
    let rig = Rig::start().await;
    let consul = rig.fleet.only("consul").await;
    consul.kill().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    rig.load.streams(ROUND).await;
    consul.start().await;
    consul.healthy().await;
    rig.end(&[]).await;
}

#[tokio::test]
async fn each_router_in_turn_may_be_killed() {
    let rig = Rig::start().await;
    let routers = rig.fleet.containers("router").await;
    for router in &routers {
        router.kill().await;
        rig.load.streams(ROUND).await;
        router.start().await;
        router.healthy().await;
    }
    rig.end(&routers).await;
}

#[tokio::test]
async fn each_discovery_replica_may_be_killed_and_both_for_three_ttls() {
    let rig = Rig::start().await;
    let replicas = rig.fleet.containers("discovery").await;
    assert_eq!(replicas.len(), 2);
    for replica in &replicas {
        replica.kill().await;
        rig.load.streams(ROUND).await;
        replica.start().await;
        replica.healthy().await;
    }
    join_all(replicas.iter().map(Container::kill)).await;
    tokio::time::sleep(Duration::from_secs(3 * TTL_SECONDS)).await;
    rig.load.streams(ROUND).await;
    join_all(replicas.iter().map(Container::start)).await;
    rig.end(&replicas).await;
}

#[tokio::test]
async fn a_crashed_decode_worker_is_started_again_and_its_streams_go_on_elsewhere() {
    let rig = Rig::start().await;
    let worker = rig.fleet.only("sim-decode").await;
    worker.crash().await;
    rig.load.streams(ROUND).await;
    worker.healthy().await;
    assert_eq!(worker.inspect("{{.RestartCount}}").await, "1");
    rig.end(&[worker]).await;
}

#[tokio::test]
async fn streams_of_a_worker_that_is_cut_off_from_everybody_go_on_elsewhere() {
    let rig = Rig::start().await;
    let worker = rig.fleet.only("sim-decode").await;
    let cut = worker.cut_off(&[]).await;
    rig.load.streams(ROUND).await;
    tokio::time::sleep(Duration::from_secs(3 * TTL_SECONDS)).await;
    rig.load.streams(ROUND).await;
    cut.heal().await;
    // It hears that it was given up, and comes back as a new incarnation.
    rig.end(&[worker]).await;
}

#[tokio::test]
async fn discovery_cut_off_from_consul_loses_nobody() {
    let rig = Rig::start().await;
    let consul = [rig.fleet.only("consul").await.ip().await];
    let replicas = rig.fleet.containers("discovery").await;
    let cuts = join_all(replicas.iter().map(|replica| replica.cut_off(&consul))).await;
    tokio::time::sleep(Duration::from_secs(3 * TTL_SECONDS)).await;
    rig.load.streams(ROUND).await;
    for cut in cuts {
        cut.heal().await;
    }
    rig.end(&[]).await;
}
