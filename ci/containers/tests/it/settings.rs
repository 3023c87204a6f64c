//! Wrong settings: the message names the key, and the engine does not start a container over and over where that cannot help.

use armature_containers::container::Container;
use armature_containers::docker::{docker, run, text};
use armature_e2e::wait_until;

/// Tag of the images under test.
fn image(service: &str) -> String {
    format!("armature/{service}:dev")
}

/// A container of its own, removed when it is dropped.
struct Alone(Container);

impl Alone {
    async fn start(service: &str, settings: &[&str]) -> Self {
        let image = image(service);
        let mut args = vec!["run", "--detach", "--restart", "on-failure:2"];
        args.extend(settings.iter().flat_map(|setting| ["--env", setting]));
        args.push(&image);
        Self(Container { id: docker(&args).await })
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ =
            std::process::Command::new("docker").args(["rm", "--force", "--volumes", &self.0.id]).output();
    }
}

#[tokio::test]
async fn what_no_restart_can_cure_ends_with_64_and_the_key() {
    let cases = [
        ("router", "ARMATURE_ROUTER__POLICY__NAMES=kv", "policy.name"),
        ("frontend", "ARMATURE_FRONTEND__DISCOVERY=[\"nowhere\"]", "discovery"),
        ("worker", "ARMATURE_WORKER__KV_BLOCKS=0", "model"),
        ("discovery", "ARMATURE_DISCOVERY__BACKEND__KIND=etcd", "backend.kind"),
    ];
    for (service, setting, key) in cases {
        let output = run("docker", &["run", "--rm", "--env", setting, &image(service)]).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{service}: {said}");
        assert!(said.contains(key), "{service} does not name {key}: {said}");
    }
}

#[tokio::test]
async fn certificates_that_are_not_there_are_named() {
    let settings = [
        "ARMATURE_DISCOVERY__BACKEND__KIND=consul",
        "ARMATURE_DISCOVERY__CONSUL__URL=https://consul:8501",
        "ARMATURE_DISCOVERY__CONSUL__CA_FILE=/nowhere/ca.pem",
    ];
    let mut args = vec!["run", "--rm"];
    args.extend(settings.iter().flat_map(|setting| ["--env", setting]));
    let image = image("discovery");
    args.push(&image);
    let output = run("docker", &args).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("consul.ca_file") && said.contains("/nowhere/ca.pem"), "{said}");
}

#[tokio::test]
async fn a_wrong_setting_is_tried_a_few_times_and_no_more() {
    let alone = Alone::start("router", &["ARMATURE_ROUTER__NO_SUCH_KEY=1"]).await;
    wait_until("the engine gives up", async || {
        alone.0.inspect("{{.State.Status}} {{.RestartCount}} {{.State.ExitCode}}").await == "exited 2 64"
    })
    .await;
}

#[tokio::test]
async fn a_consul_that_does_not_answer_is_waited_for_and_named() {
    let settings =
        ["ARMATURE_DISCOVERY__BACKEND__KIND=consul", "ARMATURE_DISCOVERY__CONSUL__URL=http://127.0.0.1:1"];
    let alone = Alone::start("discovery", &settings).await;
    wait_until("it says what is missing", async || alone.0.logs().await.contains("consul.url")).await;
    assert_eq!(alone.0.inspect("{{.State.Running}} {{.RestartCount}}").await, "true 0");
    let probe = run("docker", &["exec", &alone.0.id, "/usr/local/bin/armature-discovery", "--probe"]).await;
    assert_eq!(probe.status.code(), Some(1), "{}", text(&probe.stderr));
}
