//! Separate processes, killed without warning: the client sees the right text, and nothing is left behind.

use armature_e2e::client::chunk_text;
use armature_e2e::cluster::Cluster;
use armature_e2e::wait_until;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// A tiny real model in a folder that outlives the cluster.
fn tiny_model() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    armature_tiny_gguf::write(&path, &armature_tiny_gguf::Spec::default()).unwrap();
    (dir, path)
}

fn request(model: &str, prompt: &str, max_tokens: u32, seed: u64) -> Value {
    json!({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "seed": seed, "temperature": 0.9,
        "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
    })
}

/// Reads a stream to its end; calls `at` once, after `after` chunks with text.
async fn text_of(
    cluster: &mut Cluster,
    body: &Value,
    after: usize,
    at: impl FnOnce(&mut Cluster, &str),
) -> String {
    let (status, headers, mut chunks) = cluster.client.stream("/v1/completions", body).await.unwrap();
    assert_eq!(status, 200);
    let decode = headers["x-armature-decode-worker"].to_str().unwrap().to_owned();
    let (mut text, mut seen, mut at) = (String::new(), 0, Some(at));
    let mut finished = false;
    while let Some(chunk) = chunks.next().await {
        assert!(chunk.get("error").is_none() && chunk.get("broken").is_none(), "{chunk}");
        text += chunk_text(&chunk);
        finished |= chunk["choices"][0]["finish_reason"].is_string();
        seen += usize::from(!chunk_text(&chunk).is_empty());
        if seen == after
            && let Some(at) = at.take()
        {
            at(cluster, &decode);
        }
    }
    assert!(finished, "no finish_reason after {text:?}");
    text
}

/// Name of the process whose log says that it serves as `instance`.
fn process_of(cluster: &mut Cluster, instance: &str) -> String {
    let process = cluster
        .processes
        .iter()
        .find(|process| process.log().contains(instance) && process.name().starts_with("worker"));
    process.expect("a worker logs its instance id").name().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_killed_in_mid_stream_costs_no_token() {
    let (_dir, model) = tiny_model();
    let mut cluster = Cluster::start(Some(&model));
    for name in ["worker-a", "worker-b", "worker-c"] {
        cluster.worker(name, "aggregated", &[("served_name", "tiny")]);
    }
    cluster.serving("tiny", 3, 0).await;
    let body = request("tiny", "a long story", 300, 11);
    let expected = text_of(&mut cluster, &body, usize::MAX, |_, _| {}).await;
    assert!(!expected.is_empty());
    // Killed twice in two requests: the second kill hits a request that has been migrated before or not.
    for after in [1, 40] {
        let text = text_of(&mut cluster, &body, after, |cluster, decode| {
            let name = process_of(cluster, decode);
            cluster.get(&name).kill();
        })
        .await;
        assert_eq!(text, expected, "killed after {after} chunks");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_killed_at_any_phase_of_a_hand_off_costs_time_only() {
    let (_dir, model) = tiny_model();
    let phases = [
        "source.accepted",
        "source.begun",
        "source.granted",
        "source.piece",
        "source.computed",
        "source.done",
        "source.acked",
    ];
    for transport in ["[\"tcp\"]", "[\"shm\"]"] {
        let mut cluster = Cluster::start(Some(&model));
        let settings = [("served_name", "tiny"), ("transports", transport)];
        let decode_admin = cluster.worker("worker-d", "decode", &settings);
        cluster.serving("tiny", 1, 0).await;
        let prompt = "once upon a time ".repeat(12);
        let expected = text_of(&mut cluster, &request("tiny", &prompt, 40, 5), usize::MAX, |_, _| {}).await;
        let metrics = armature_e2e::client::Client::new(&format!("http://{decode_admin}"));
        for (i, phase) in phases.iter().enumerate() {
            if transport == "[\"tcp\"]" && *phase == "source.piece" {
                continue; // Pieces are announced over shm only.
            }
            let name = format!("worker-p{i}");
            let mut held = settings.to_vec();
            held.push(("fault_point", phase));
            cluster.worker(&name, "prefill", &held);
            // One stream after another until one is held: while the router does not doubt the dead yet, it may name only them. The same
            // prompt under another salt: nothing of it is cached, and the tokens are the same.
            let mut streams = JoinSet::new();
            wait_until("a hand-off is held at its phase", async || {
                if let Some(ended) = streams.try_join_next() {
                    assert_eq!(ended.unwrap(), expected, "{transport}: {phase} not reached");
                }
                if streams.is_empty() {
                    let mut body = request("tiny", &prompt, 40, 5);
                    body["cache_salt"] = rand::random::<u64>().to_string().into();
                    let client = cluster.client.clone();
                    streams.spawn(async move {
                        let (status, _, chunks) = client.stream("/v1/completions", &body).await.unwrap();
                        assert_eq!(status, 200);
                        chunks.map(|chunk| chunk_text(&chunk).to_owned()).collect::<String>().await
                    });
                }
                cluster.get(&name).log().contains("fault point reached")
            })
            .await;
            cluster.get(&name).kill();
            let text = streams.join_next().await.unwrap().unwrap();
            assert_eq!(text, expected, "{transport}: killed at {phase}");
            wait_until("no block is held or in quarantine", async || {
                let page = metrics.get_text("/metrics").await;
                ["kv_blocks_active", "kv_blocks_quarantined", "kv_blocks_promised", "running", "waiting"]
                    .iter()
                    .all(|name| page.contains(&format!("armature_worker_{name} 0")))
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn router_and_discovery_can_be_killed_under_a_stream_and_come_back() {
    let mut cluster = Cluster::start(None);
    for name in ["worker-a", "worker-b"] {
        cluster.worker(name, "aggregated", &[("sim.speedup", "4")]);
    }
    cluster.router("router-2");
    cluster.serving("sim", 2, 0).await;
    let body = request("sim", "the quick brown fox", 200, 3);
    let expected = text_of(&mut cluster, &body, usize::MAX, |_, _| {}).await;
    for victim in ["router-1", "discovery"] {
        let text = text_of(&mut cluster, &body, 5, |cluster, _| cluster.get(victim).kill()).await;
        assert_eq!(text, expected, "{victim} killed in mid-stream");
        // Also a new request is served, with what is left.
        let text = text_of(&mut cluster, &body, usize::MAX, |_, _| {}).await;
        assert_eq!(text, expected, "after {victim} was killed");
    }
    cluster.discovery();
    cluster.worker("worker-c", "aggregated", &[("sim.speedup", "4")]);
    cluster.serving("sim", 3, 0).await;
    for process in &mut cluster.processes {
        let killed = process.name() == "router-1";
        assert!(killed || process.name() == "discovery" || process.runs(), "{} has ended", process.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_streams_ends_every_process_well_and_loses_nothing() {
    let mut cluster = Cluster::start(None);
    for name in ["worker-a", "worker-b"] {
        cluster.worker(name, "aggregated", &[("sim.speedup", "2"), ("drain_seconds", "0.5")]);
    }
    cluster.serving("sim", 2, 0).await;
    let body = request("sim", "drain me", 300, 4);
    let expected = text_of(&mut cluster, &body, usize::MAX, |_, _| {}).await;
    // Its drain is shorter than the stream: the rest migrates.
    let mut terminated = String::new();
    let text = text_of(&mut cluster, &body, 3, |cluster, decode| {
        terminated = process_of(cluster, decode);
        cluster.get(&terminated).signal("TERM");
    })
    .await;
    assert_eq!(text, expected);
    assert_eq!(cluster.get(&terminated).ended().await.code(), Some(0));
    // The frontend finishes its streams, then ends.
    let text = text_of(&mut cluster, &body, 3, |cluster, _| cluster.get("frontend").signal("TERM")).await;
    assert_eq!(text, expected);
    assert_eq!(cluster.get("frontend").ended().await.code(), Some(0));
    for name in ["router-1", "worker-a", "worker-b", "discovery"] {
        if name != terminated {
            cluster.get(name).signal("TERM");
            assert_eq!(cluster.get(name).ended().await.code(), Some(0), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_announced_gone_while_it_lives_costs_no_token_and_serves_again() {
    let mut cluster = Cluster::start(None);
    let names = ["worker-a", "worker-b"];
    let admins = names.map(|name| cluster.worker(name, "aggregated", &[("sim.speedup", "4")]));
    cluster.serving("sim", 2, 0).await;
    let body = request("sim", "gone, they say", 200, 5);
    let expected = text_of(&mut cluster, &body, usize::MAX, |_, _| {}).await;
    let (mut gone, mut announced) = (String::new(), None);
    let text = text_of(&mut cluster, &body, 5, |cluster, decode| {
        gone = process_of(cluster, decode);
        announced = Some(tokio::spawn(cluster.announce_gone(decode)));
    })
    .await;
    announced.expect("the stream was long enough").await.unwrap();
    assert_eq!(text, expected);
    // The same process, under another id: requests reach two workers again.
    let at = names.iter().position(|name| *name == gone).unwrap();
    let admin = armature_e2e::client::Client::new(&format!("http://{}", admins[at]));
    wait_until("it has been told", async || {
        admin.get_text("/metrics").await.contains("armature_worker_fenced_total 1")
    })
    .await;
    cluster.serving("sim", 2, 0).await;
    assert!(cluster.get(&gone).runs());
    let text = text_of(&mut cluster, &body, usize::MAX, |_, _| {}).await;
    assert_eq!(text, expected);
}
