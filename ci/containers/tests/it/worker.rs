//! A whole worker from its image, in a network of its own with discovery, serving a router and a frontend that run outside.

use std::time::Duration;

use armature_e2e::client::Client;
use armature_e2e::process::{Process, free_port};
use armature_e2e::wait_until;
use serde_json::json;
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{GenericImage, ImageExt};

#[tokio::test]
async fn it_registers_where_it_can_be_reached_serves_and_leaves_on_sigterm() {
    let name = format!("armature-test-{:08x}", rand::random::<u32>());
    let discovery = GenericImage::new("armature/discovery", "dev")
        .with_exposed_port(7100.tcp())
        .with_wait_for(WaitFor::healthcheck())
        .with_container_name(format!("{name}-discovery"))
        .with_network(&name)
        .with_health_check(every_second("/usr/local/bin/armature-discovery"))
        .start()
        .await
        .unwrap();
    let worker = GenericImage::new("armature/worker", "dev")
        .with_wait_for(WaitFor::healthcheck())
        .with_env_var("ARMATURE_WORKER__ENGINE", "sim")
        .with_env_var("ARMATURE_WORKER__DISCOVERY", format!("[\"{name}-discovery:7100\"]"))
        .with_network(&name)
        .with_health_check(every_second("/usr/local/bin/armature-worker"))
        .start()
        .await
        .unwrap();

    let endpoint = format!("[\"127.0.0.1:{}\"]", discovery.get_host_port_ipv4(7100).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let start = |service: &str, settings: &[(&str, &str)]| {
        let common = [("admin", "127.0.0.1:0"), ("discovery", endpoint.as_str())];
        let sets = common
            .iter()
            .chain(settings)
            .flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]);
        Process::start(dir.path(), service, &format!("armature-{service}"), &sets.collect::<Vec<_>>())
    };
    let http = format!("127.0.0.1:{}", free_port());
    let _router = start("router", &[("listen", "127.0.0.1:0")]);
    let _frontend = start("frontend", &[("http", &http), ("grpc", "127.0.0.1:0")]);
    let client = Client::new(&format!("http://{http}"));
    let body = json!({"model": "sim", "prompt": "x", "max_tokens": 8, "ignore_eos": true});
    wait_until("the container serves", async || {
        client.post("/v1/completions", &body).await.is_ok_and(|answer| answer.status == 200)
    })
    .await;

    worker.stop_with_timeout(Some(30)).await.unwrap();
    assert_eq!(worker.exit_code().await.unwrap(), Some(0));
    wait_until("the model is gone with its worker", async || {
        let models = client.get("/v1/models").await;
        models.is_ok_and(|models| models.body["data"].as_array().is_some_and(Vec::is_empty))
    })
    .await;
}

/// The image's own check, more often.
fn every_second(binary: &str) -> testcontainers::core::Healthcheck {
    testcontainers::core::Healthcheck::cmd([binary, "--probe"]).with_interval(Duration::from_secs(1))
}
