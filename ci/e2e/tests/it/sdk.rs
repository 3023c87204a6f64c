//! Clients that are not ours: the official OpenAI SDK, and gRPC in another language with stubs from the .proto files.

use std::path::Path;
use std::process::Stdio;

use armature_e2e::suite::Suite;
use tokio::process::Command;

/// Runs a script of ci/e2e/python; what it prints is shown when it fails.
async fn python(script: &str, args: &[&str]) {
    let python = std::env::var_os("ARMATURE_PYTHON");
    let Some(python) = python else {
        eprintln!(
            "SKIPPED {script}: ARMATURE_PYTHON names no Python with ci/requirements.txt; ci/gate.sh sets it"
        );
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    let mut command = Command::new(python);
    command.arg(script).args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.expect("Python starts");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{wrong}");
    assert!(said.contains("ok "), "it checked nothing: {said}{wrong}");
}

#[tokio::test]
async fn openai() {
    let suite = Suite::sim().await;
    python("openai_sdk.py", &[&format!("{}/v1", suite.client.base())]).await;
    suite.idle().await;
}

#[tokio::test]
async fn grpc_in_python() {
    let suite = Suite::sim().await;
    python("grpc_client.py", &[&suite.grpc, concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto")]).await;
    suite.idle().await;
}
