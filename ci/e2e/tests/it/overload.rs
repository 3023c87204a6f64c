//! More than the workers can do: requests wait in the router, nobody fails, and tenants share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use armature_e2e::cluster::Cluster;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Requests of the tenant that floods, and of the other.
const FLOOD: usize = 60;
const MODEST: usize = 12;

fn body(n: usize) -> Value {
    json!({"model": "sim", "prompt": format!("{n} what is asked"), "max_tokens": 60, "ignore_eos": true, "seed": n})
}

#[tokio::test(flavor = "multi_thread")]
async fn three_times_too_much_is_served_late_and_shared_between_tenants() {
    let mut cluster = Cluster::start(None);
    for name in ["worker-a", "worker-b"] {
        let small = [("scheduler.max_running", "2"), ("scheduler.max_waiting", "2")];
        cluster.worker(name, "aggregated", &small);
    }
    cluster.serving("sim", 2, 0).await;
    let served = Arc::new(AtomicUsize::new(0));
    let first = watch::Sender::new(false);
    let mut flood = JoinSet::new();
    for n in 0..FLOOD {
        let (client, served, first) = (cluster.client.clone(), served.clone(), first.clone());
        flood.spawn(async move {
            let answer =
                client.post_with("/v1/completions", &[("x-tenant", "flood")], &body(n)).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(answer.body["usage"]["completion_tokens"], 60);
            served.fetch_add(1, Ordering::SeqCst);
            first.send_replace(true);
        });
    }
    // One is served: so many others wait.
    first.subscribe().wait_for(|first| *first).await.unwrap();

    // Who wants no queue is told at once, and when to come back.
    let no_queue = [("x-tenant", "modest"), ("x-armature-max-queue-ms", "0")];
    let refused = cluster.client.post_with("/v1/completions", &no_queue, &body(1_000)).await.unwrap();
    assert_eq!((refused.status, &refused.body["error"]["code"]), (429, &json!("all_workers_busy")));
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds >= 1));

    let mut modest = JoinSet::new();
    for n in 0..MODEST {
        let client = cluster.client.clone();
        modest.spawn(async move {
            let answer =
                client.post_with("/v1/completions", &[("x-tenant", "modest")], &body(100 + n)).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
        });
    }
    modest.join_all().await;
    let of_the_flood = served.load(Ordering::SeqCst);
    flood.join_all().await;
    // In turns, the modest tenant's requests are served beside as many of the flood, and not after all of it.
    assert!(
        of_the_flood <= FLOOD - MODEST,
        "{of_the_flood} of {FLOOD} were served before the last of {MODEST}"
    );
    assert_eq!(served.load(Ordering::SeqCst), FLOOD);
}
