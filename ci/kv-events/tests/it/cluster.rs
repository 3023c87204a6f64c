//! Three servers as one cluster.

use std::time::Duration;

use armature_kv_events::fleet::Fleet;
use armature_kv_redis::{Redis as RedisClient, RedisConfig};
use armature_test_backends::Redis;

use crate::real::cli;

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn ranks_spread_over_a_cluster() {
    let nodes: Vec<Redis> = (0..3).map(|_| Redis::start(&["--cluster-enabled", "yes"])).collect();
    let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let mut create = vec!["--cluster", "create"];
    create.extend(addresses.iter().map(String::as_str));
    create.extend(["--cluster-replicas", "0", "--cluster-yes"]);
    cli(&create);
    let url = nodes.iter().map(Redis::url).collect::<Vec<_>>().join(",");
    let options = RedisConfig { url, cluster: true, ..RedisConfig::default() }.validate().unwrap().unwrap();
    let mut fleet = Fleet::start(RedisClient::new(options).unwrap(), 12, 2, 5);
    fleet.change();
    fleet.settles(PATIENCE).await;
    fleet.reads_redis_only(PATIENCE).await;
    fleet.restart_router(1);
    fleet.change();
    fleet.settles(PATIENCE).await;
    assert_eq!(fleet.routers[1].metrics.snapshots.get(), 12);
    // Keys of one rank are together, those of different ones are not all in one place.
    let held: Vec<usize> = nodes
        .iter()
        .map(|node| {
            cli(&["-p", &node.port().to_string(), "--scan"])
                .lines()
                .filter(|key| key.contains("snapshots"))
                .count()
        })
        .collect();
    assert!(held.iter().filter(|keys| **keys > 0).count() > 1, "{held:?}");
}
