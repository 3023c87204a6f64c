//! A configuration that does not fit the Consul that is there: told by its key, tried again where it can heal.

use std::path::{Path, PathBuf};
use std::process::Command;

use armature_discovery::app::{self, Parts, StartError};
use armature_discovery::config::{Config, ConsulConfig};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::secret::Secret;
use armature_test_backends::{Consul, free_port};
use prometheus_client::registry::Registry;

use super::replica::{config, patiently, serve, service, until};
use crate::fleet::{Fleet, Lease, View, router};
use crate::operations::page;

/// A replica that is not ready says so with the key to look at.
async fn told(fleet: &Fleet, config: Config, key: &str) {
    let server = fleet.serve(config).await;
    let said = until(async || {
        let page = page(&fleet.network, server.admin(), "/readyz").await;
        page.contains("503") && page.contains("not ready: ") && page.contains(key)
    });
    patiently(key, said).await;
}

#[tokio::test]
async fn an_absent_consul_is_named_and_found_when_it_comes() {
    let mut consul = Consul::start(&[]);
    consul.kill();
    let fleet = Fleet::new();
    told(&fleet, service("a", config(&consul.url(), "armature")), "consul.url").await;
    let server = fleet.serve(service("b", config(&consul.url(), "armature"))).await;
    let _lease = Lease::open(&server.client(), &router(1)).await;
    consul.revive();
    let ready = until(async || page(&fleet.network, server.admin(), "/readyz").await.contains("200 OK"));
    patiently("Consul is found", ready).await;
    patiently("seen", View::open(&server.client()).await.until_ids(&[1])).await;
}

const ACL: &str = r#"
acl { enabled = true, default_policy = "deny", tokens { master = "5e3c4d0e-3c5e-4b0a-9d83-0c5f0c4f1c00", agent = "5e3c4d0e-3c5e-4b0a-9d83-0c5f0c4f1c00" } }
"#;
const MASTER: &str = "5e3c4d0e-3c5e-4b0a-9d83-0c5f0c4f1c00";

/// The policy that the README tells operators to write.
fn documented_policy() -> String {
    let page = include_str!("../../../README.md");
    page.split_once("```hcl\n").unwrap().1.split_once("```").unwrap().0.to_owned()
}

/// Runs the Consul program as an operator does.
fn consul(directory: &Path, args: &[&str]) -> String {
    let program = match std::env::var_os("ARMATURE_BACKENDS") {
        Some(folder) => PathBuf::from(folder).join("consul"),
        None => PathBuf::from("consul"),
    };
    let output = Command::new(program).args(args).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_token_that_may_not_is_named_and_the_documented_policy_suffices() {
    let directory = tempfile::tempdir().unwrap();
    let acl = directory.path().join("acl.hcl");
    std::fs::write(&acl, ACL).unwrap();
    std::fs::write(directory.path().join("policy.hcl"), documented_policy()).unwrap();
    let agent = Consul::start(&["-config-file", &acl.to_string_lossy()]);
    let fleet = Fleet::new();
    let with = |token: Option<&str>| ConsulConfig {
        token: token.map(|token| Secret::from_value(token).unwrap()),
        ..config(&agent.url(), "armature")
    };
    told(&fleet, service("none", with(None)), "consul.token").await;
    told(&fleet, service("wrong", with(Some("00000000-0000-0000-0000-000000000001"))), "consul.token").await;

    let ask = ["-http-addr", &agent.url(), "-token", MASTER];
    let run = |args: &[&str]| consul(directory.path(), &[args, &ask].concat());
    run(&["acl", "policy", "create", "-name", "armature", "-rules", "@policy.hcl"]);
    let created = run(&["acl", "token", "create", "-policy-name", "armature"]);
    let secret = created.lines().find_map(|line| line.strip_prefix("SecretID:")).unwrap().trim();
    let server = serve(&fleet, service("right", with(Some(secret)))).await;
    let _lease = Lease::open(&server.client(), &router(1)).await;
    let written = until(async || {
        let page = page(&fleet.network, server.admin(), "/metrics").await;
        page.contains("armature_discovery_consul_calls_total{operation=\"register\"} 1")
            && page.contains("armature_discovery_consul_unsynced 0")
    });
    patiently("written", written).await;
    let errors = page(&fleet.network, server.admin(), "/metrics").await;
    assert!(!errors.contains("armature_discovery_consul_errors_total{"), "{errors}");
    let mut client = server.client();
    let campaign = armature_contracts::discovery::v1::CampaignRequest {
        name: "planner".into(),
        candidate_id: 1,
        ttl: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
    };
    assert!(client.campaign(campaign).await.unwrap().into_inner().leader);
}

#[tokio::test]
async fn tls_works_with_both_certificates_and_what_is_not_trusted_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    consul(directory.path(), &["tls", "ca", "create"]);
    consul(directory.path(), &["tls", "cert", "create", "-server"]);
    consul(directory.path(), &["tls", "cert", "create", "-client"]);
    consul(directory.path(), &["tls", "ca", "create", "-domain", "other"]);
    let https = free_port();
    let tls = format!(
        "verify_incoming_https = true\nports {{ https = {https} }}\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}\n",
        path("consul-agent-ca.pem"),
        path("dc1-server-consul-0.pem"),
        path("dc1-server-consul-0-key.pem"),
    );
    std::fs::write(path("tls.hcl"), tls).unwrap();
    let _agent = Consul::start(&["-config-file", &path("tls.hcl").to_string_lossy()]);
    let fleet = Fleet::new();
    let secure = |ca: &str| ConsulConfig {
        ca_file: Some(path(ca)),
        ..config(&format!("https://localhost:{https}"), "armature")
    };
    told(&fleet, service("other", secure("other-agent-ca.pem")), "consul.ca_file").await;
    told(&fleet, service("unknown", secure("consul-agent-ca.pem")), "consul.cert_file").await;
    let known = ConsulConfig {
        cert_file: Some(path("dc1-client-consul-0.pem")),
        key_file: Some(path("dc1-client-consul-0-key.pem")),
        ..secure("consul-agent-ca.pem")
    };
    serve(&fleet, service("known", known)).await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let garbage = directory.path().join("garbage.pem");
    std::fs::write(&garbage, "no certificate").unwrap();
    let https = config("https://localhost:8501", "armature");
    let identity = (Some(garbage.clone()), Some(garbage.clone()));
    for (key, consul) in [
        ("consul.ca_file", ConsulConfig { ca_file: Some(garbage.clone()), ..https.clone() }),
        ("consul.ca_file", ConsulConfig { ca_file: Some("/does/not/exist".into()), ..https.clone() }),
        ("consul.cert_file", ConsulConfig { cert_file: identity.0, key_file: identity.1, ..https.clone() }),
        ("consul.token", ConsulConfig { token: Some(Secret::from_value("line\nbreak").unwrap()), ..https }),
    ] {
        let parts =
            Parts { network: Fleet::new().network, registry: Registry::default(), drain: Drain::new() };
        let error = app::start(service("a", consul), parts).await.unwrap_err();
        assert!(matches!(error, StartError::Config(_)) && error.to_string().contains(key), "{error}");
    }
}
