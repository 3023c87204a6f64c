//! The client examples of proto/examples, built from the .proto files alone, against services that are a process each.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use armature_contracts::router::v1::ListWorkersRequest;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_e2e::cluster::Cluster;
use armature_e2e::wait_until;
use futures_util::StreamExt;
use serde_json::json;
use tokio::process::Command;

const LANGUAGES: [&str; 3] = ["cpp", "go", "python"];

/// A client at one frontend.
struct Example {
    program: PathBuf,
    address: String,
}

/// How it ended.
#[derive(Debug)]
struct Ended {
    well: bool,
    /// The answer.
    said: String,
    /// All about it.
    told: String,
}

impl Example {
    async fn run(&self, options: &[&str]) -> Ended {
        let mut command = Command::new(&self.program);
        command
            .args([&self.address, "Tell me a story"])
            .args(options)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(armature_e2e::PATIENCE, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("{} does not end", self.program.display())).unwrap();
        Ended {
            well: output.status.success(),
            said: String::from_utf8_lossy(&output.stdout).into_owned(),
            told: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    fn tells(&self, line: &str) {
        assert!(self.told.lines().any(|told| told.starts_with(line)), "no line {line:?} in {self:#?}");
    }
}

async fn idle(cluster: &Cluster) {
    let router = format!("http://{}", cluster.address("router-1"));
    let mut router = RouterServiceClient::connect(router).await.unwrap();
    wait_until("no worker works", async || {
        let asked = ListWorkersRequest { namespace: "default".into() };
        let workers = router.list_workers(asked).await.unwrap().into_inner().workers;
        workers.iter().all(|it| it.running + it.waiting + it.blocks_active == 0)
    })
    .await;
}

/// One test, for it is the services that take their time to start.
#[tokio::test]
async fn in_three_languages_stream_cancel_keep_deadlines_and_read_errors() {
    let Some(programs) = std::env::var_os("ARMATURE_CLIENTS") else {
        assert!(std::env::var_os("ARMATURE_CI").is_none(), "CI skips nothing");
        eprintln!("SKIPPED: ARMATURE_CLIENTS names no folder with the client examples: ci/gate.sh sets it");
        return;
    };
    let mut cluster = Cluster::start(None);
    cluster.worker("worker", "aggregated", &[]);
    cluster.serving("sim", 1, 0).await;
    let examples = LANGUAGES.map(|language| Example {
        program: Path::new(&programs).join(language),
        address: cluster.grpc.clone(),
    });

    let mut answers = Vec::new();
    for example in &examples {
        let chat = example.run(&["seed=7", "max_tokens=12"]).await;
        assert!(chat.well, "{chat:#?}");
        chat.tells("started: sim on ");
        chat.tells("finished: LENGTH after 12 tokens");
        answers.push(chat.said);

        let left = example.run(&["max_tokens=4000", "cancel_after=3"]).await;
        assert!(left.well && !left.said.is_empty(), "{left:#?}");
        left.tells("cancelled: after 3 deltas");
        idle(&cluster).await;

        let late = example.run(&["max_tokens=4000", "deadline=0.4"]).await;
        assert!(!late.well, "{late:#?}");
        late.tells("error: DEADLINE_EXCEEDED: ");
        idle(&cluster).await;

        let unknown = example.run(&["model=no-such-model"]).await;
        assert!(!unknown.well && unknown.said.is_empty(), "{unknown:#?}");
        unknown.tells("error: NOT_FOUND: ");
        unknown.tells("  reason: MODEL_NOT_FOUND (armature), scope REQUEST");
        unknown.tells("  field: model: ");
    }
    assert!(
        !answers[0].is_empty() && answers.iter().all(|it| *it == answers[0]),
        "one seed, one answer: {answers:?}"
    );

    // A frontend that is full says when to come back.
    cluster.get("frontend").kill();
    cluster.frontend(&[("max_in_flight", "1")]);
    cluster.serving("sim", 1, 0).await;
    let long =
        json!({"model": "sim", "prompt": "long", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let (_, _, mut stream) = cluster.client.stream("/v1/completions", &long).await.unwrap();
    assert!(stream.next().await.is_some(), "it runs");
    for example in &examples {
        let refused = example.run(&["model=sim"]).await;
        assert!(!refused.well, "{refused:#?}");
        refused.tells("error: RESOURCE_EXHAUSTED: ");
        refused.tells("  reason: OVERLOADED (armature), scope THIS_WORKER");
        refused.tells("  retry after: 1000 ms");
    }
}
