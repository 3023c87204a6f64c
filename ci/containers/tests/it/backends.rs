//! Services of this build against Redis and Consul in containers, under the tags that compose.yaml names.

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

#[tokio::test]
async fn redis_in_a_container_is_what_kv_events_ask_for() {
    let redis = GenericImage::new("redis", "7")
        .with_exposed_port(6379.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Ready to accept connections"))
        .with_cmd([
            "redis-server",
            "--save",
            "",
            "--maxmemory-policy",
            "noeviction",
            "--protected-mode",
            "no",
        ])
        .start()
        .await
        .unwrap();
    let version = inside(&redis, &["redis-cli", "INFO", "server"]).await;
    let version =
        version.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap().trim().to_owned();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap());
    let (major, minor) = (parts.next().unwrap(), parts.next().unwrap());
    assert!((major, minor) >= (6, 2), "{version}");
    assert_eq!(
        inside(&redis, &["redis-cli", "CONFIG", "GET", "maxmemory-policy"]).await,
        "maxmemory-policy\nnoeviction\n"
    );
    let port = redis.get_host_port_ipv4(6379).await.unwrap();
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok());
}
