//! Services of this build against Redis and Consul in containers, under the tags that compose.yaml names.

use std::path::Path;

use armature_containers::docker::text;
use armature_e2e::process::{Process, free_port};
use armature_e2e::wait_until;
use testcontainers::core::{ExecCommand, IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};

/// Runs a program inside, and returns what it wrote to standard output.
async fn inside(container: &ContainerAsync<GenericImage>, command: &[&str]) -> String {
    let mut run = container.exec(ExecCommand::new(command.iter().copied())).await.unwrap();
    text(&run.stdout_to_vec().await.unwrap())
}

fn sets(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]).collect()
}

fn any_port() -> String {
    "127.0.0.1:0".to_owned()
}

#[tokio::test]
async fn what_discovery_registers_is_in_consuls_catalogue_until_it_deregisters() {
    let consul = GenericImage::new("hashicorp/consul", "1.20")
        .with_exposed_port(8500.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Synced node info"))
        .with_cmd(["agent", "-dev", "-client", "0.0.0.0"])
        .start()
        .await
        .unwrap();
    let port = consul.get_host_port_ipv4(8500).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let discovery = format!("127.0.0.1:{}", free_port());
    let settings = [
        ("listen", discovery.clone()),
        ("admin", any_port()),
        ("backend.kind", "consul".into()),
        ("consul.url", format!("http://127.0.0.1:{port}")),
    ];
    let _discovery = Process::start(dir.path(), "discovery", "armature-discovery", &sets(&settings));
    let settings = [
        ("engine", "sim".into()),
        ("discovery", format!("[\"{discovery}\"]")),
        ("listen", any_port()),
        ("kv_listen", any_port()),
        ("admin", any_port()),
        ("shm_dir", dir.path().join("shm").display().to_string()),
    ];
    let mut worker = Process::start(dir.path(), "worker", "armature-worker", &sets(&settings));
    let listed =
        async || inside(&consul, &["consul", "catalog", "services"]).await.contains("armature-worker");
    wait_until("the worker is in the catalogue", listed).await;

    worker.signal("TERM");
    assert!(worker.ended().await.success());
    wait_until("the worker is out of the catalogue", async || !listed().await).await;
}

/// A Redis with these arguments, and its URL.
async fn redis(args: &[&str]) -> (ContainerAsync<GenericImage>, String) {
    let fixed = ["redis-server", "--save", "", "--protected-mode", "no", "--maxmemory-policy", "noeviction"];
    let redis = GenericImage::new("redis", "7")
        .with_exposed_port(6379.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Ready to accept connections"))
        .with_cmd(fixed.iter().chain(args).copied())
        .start()
        .await
        .unwrap();
    let port = redis.get_host_port_ipv4(6379).await.unwrap();
    (redis, format!("redis://127.0.0.1:{port}"))
}

/// A simulated worker that publishes its KV events there; discovery is nowhere, which does not matter for that.
fn publisher(dir: &Path, url: &str) -> Process {
    let settings = [
        ("engine", "sim".into()),
        ("listen", any_port()),
        ("kv_listen", any_port()),
        ("admin", any_port()),
        ("shm_dir", dir.join("shm").display().to_string()),
        ("kv_events.redis.url", url.to_owned()),
    ];
    Process::start(dir, "worker", "armature-worker", &sets(&settings))
}

#[tokio::test]
async fn a_worker_publishes_its_kv_events_to_redis() {
    let (redis, url) = redis(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    let _worker = publisher(dir.path(), &url);
    wait_until("there is something of the worker", async || {
        !inside(&redis, &["redis-cli", "--scan", "--pattern", "armature:kv:*"]).await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_is_not_fit_is_named_with_what_to_set_and_tried_again() {
    let cases = [
        (["--maxmemory-policy", "allkeys-lru"], "set maxmemory-policy to noeviction"),
        (["--requirepass", "secret"], "kv_events.redis.password"),
    ];
    for (args, named) in cases {
        let (redis, url) = redis(&args).await;
        let dir = tempfile::tempdir().unwrap();
        let mut worker = publisher(dir.path(), &url);
        wait_until("the worker says what is wrong", async || worker.log().contains(named)).await;
        assert!(worker.runs(), "{}", worker.log());
        if args[0] == "--maxmemory-policy" {
            inside(&redis, &["redis-cli", "CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
            wait_until("it publishes after all", async || {
                !inside(&redis, &["redis-cli", "--scan", "--pattern", "armature:kv:*"]).await.is_empty()
            })
            .await;
        }
    }
}
