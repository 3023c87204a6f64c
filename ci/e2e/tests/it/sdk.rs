//! Clients that are not ours: the official OpenAI SDK, and gRPC in another language with stubs from the .proto files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use armature_e2e::cluster::Cluster;
use armature_e2e::suite::Suite;
use tokio::process::Command;

/// Says so where the test runner does not swallow it.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {why}", module_path!());
}

/// Runs a script of ci/e2e/python; what it prints is shown when it fails.
async fn python(script: &str, args: &[&str]) {
    let Some(python) = std::env::var_os("ARMATURE_PYTHON") else {
        return skipped("ARMATURE_PYTHON names no Python with ci/requirements.txt: ci/gate.sh sets it");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    let mut command = Command::new(python);
    command.arg(script).args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.expect("Python starts");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{wrong}");
    assert!(said.contains("ok "), "it checked nothing: {said}{wrong}");
}

async fn both(suite: Suite) {
    python("openai_sdk.py", &[&format!("{}/v1", suite.client.base())]).await;
    python("grpc_client.py", &[&suite.grpc, concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto")]).await;
    suite.idle().await;
}

#[tokio::test]
async fn the_simulated_engine() {
    both(Suite::sim().await).await;
}

/// On what `armature model fetch` got: real text, real tokens, real end tokens.
#[tokio::test]
async fn the_reference_model() {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/armature"));
    let cache = std::env::var_os("ARMATURE_CACHE").map(PathBuf::from).or_else(home).unwrap();
    if std::fs::read_dir(cache.join("models")).is_ok_and(|mut models| models.next().is_some()) {
        both(Suite::start(&["--prefill", "1", "--decode", "1"]).await).await;
    } else {
        skipped("the reference model is not there: armature model fetch");
    }
}

/// `buf curl` without a schema: what a person has at hand who was given an address and no .proto file.
#[tokio::test]
async fn buf_curl_finds_and_calls_every_service_by_reflection() {
    let Some(python) = std::env::var_os("ARMATURE_PYTHON") else {
        return skipped("ARMATURE_PYTHON names no Python with ci/requirements.txt: ci/gate.sh sets it");
    };
    let buf = Path::new(&python).with_file_name("buf");
    let outside_any_module = tempfile::tempdir().unwrap();
    let curl = async |address: &str, more: &[&str]| {
        let mut command = Command::new(&buf);
        command.args(["curl", "--protocol", "grpc", "--http2-prior-knowledge"]).args(more);
        command.current_dir(&outside_any_module).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.expect("buf starts");
        let (said, wrong) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{address}: {said}{wrong}");
        said.into_owned()
    };
    let mut cluster = Cluster::start(None);
    cluster.worker("worker", "aggregated", &[]);
    cluster.serving("sim", 1, 0).await;
    let mut found = Vec::new();
    for address in cluster.services() {
        let listed = curl(address, &["--list-services", &format!("http://{address}")]).await;
        found.extend(listed.lines().filter(|line| line.starts_with("armature.")).map(str::to_owned));
        let health = format!("http://{address}/grpc.health.v1.Health/Check");
        assert!(curl(address, &["--data", "{}", &health]).await.contains("SERVING"), "{address}");
    }
    found.sort();
    let (discovery, inference) =
        ("armature.discovery.v1.DiscoveryService", "armature.inference.v1.InferenceService");
    assert_eq!(
        found,
        [discovery, inference, "armature.router.v1.RouterService", "armature.worker.v1.WorkerService"]
    );
}
