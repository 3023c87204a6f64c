//! A fleet by `compose.yaml`, unmodified: its settings are environment variables, as for everybody.

use std::path::{Path, PathBuf};
use std::process::Command;

use armature_e2e::client::Client;
use armature_e2e::process::free_port;
use armature_e2e::wait_until;
use futures_util::future::join_all;

use crate::container::Container;

/// Seconds of a lease's TTL in tests: waiting for three of them should not take long.
pub const TTL_SECONDS: u64 = 5;
/// Services of ours that the simulated fleet has.
const SERVICES: [&str; 5] = ["discovery", "router", "frontend", "sim-prefill", "sim-decode"];

/// A running compose project. Dropping it removes its containers, networks and volumes; logs are shown when the test failed.
#[derive(Debug)]
pub struct Fleet {
    compose: Vec<String>,
    root: PathBuf,
    environment: Vec<(String, String)>,
    /// The frontend's OpenAI API.
    pub client: Client,
    /// `host:port` of the frontend's gRPC API.
    pub grpc: String,
    /// Name of the model it serves.
    pub model: &'static str,
}

impl Fleet {
    /// The simulated fleet; returns when every container is healthy.
    pub async fn sim() -> Self {
        let fleet = Self::start("sim", "sim", &[]).await;
        fleet.healthy().await;
        fleet
    }

    /// Starts a profile of compose.yaml, on ports and under a name of its own; `more` are further settings.
    ///
    /// # Panics
    /// When compose fails.
    pub async fn start(profile: &str, model: &'static str, more: &[(&str, &str)]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize();
        let root = root.expect("ci/containers lies two levels below the root");
        let compose = std::env::var("ARMATURE_COMPOSE").unwrap_or_else(|_| "docker-compose".into());
        let (http, grpc) = (free_port(), free_port());
        let settings = [
            ("COMPOSE_PROFILES", profile.to_owned()),
            ("COMPOSE_PROJECT_NAME", format!("armature-test-{:08x}", rand::random::<u32>())),
            ("ARMATURE_HTTP_PORT", http.to_string()),
            ("ARMATURE_GRPC_PORT", grpc.to_string()),
            ("ARMATURE_TTL_SECONDS", TTL_SECONDS.to_string()),
        ];
        let more = more.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let fleet = Self {
            compose: compose.split_whitespace().map(str::to_owned).collect(),
            root,
            environment: settings
                .into_iter()
                .chain(more)
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            client: Client::new(&format!("http://127.0.0.1:{http}")),
            grpc: format!("127.0.0.1:{grpc}"),
            model,
        };
        fleet.compose(&["up", "-d", "--no-build"]).await;
        fleet
    }

    /// Runs `compose ...` and returns what it wrote to standard output.
    ///
    /// # Panics
    /// When it fails, with what it said.
    pub async fn compose(&self, args: &[&str]) -> String {
        let mut command = tokio::process::Command::from(self.command(args));
        let output = command.kill_on_drop(true).output().await.expect("compose starts");
        let said = crate::docker::text(&output.stdout);
        assert!(output.status.success(), "compose {args:?}: {said}{}", crate::docker::text(&output.stderr));
        said
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.compose[0]);
        command.args(&self.compose[1..]).args(args).current_dir(&self.root);
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command
    }

    /// The containers of a service.
    pub async fn containers(&self, service: &str) -> Vec<Container> {
        let ids = self.compose(&["ps", "-q", service]).await;
        let mut ids: Vec<&str> = ids.split_whitespace().collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| Container { id: id.to_owned() }).collect()
    }

    /// The container of a service that has one.
    ///
    /// # Panics
    /// When it has none.
    pub async fn only(&self, service: &str) -> Container {
        self.containers(service).await.into_iter().next().expect("a container of this service")
    }

    /// Every container of our own services in the simulated fleet.
    pub async fn ours(&self) -> Vec<Container> {
        join_all(SERVICES.map(|service| self.containers(service))).await.concat()
    }

    /// Waits until every container of our own is healthy.
    pub async fn healthy(&self) {
        let ours = self.ours().await;
        wait_until("every container is healthy", async || {
            join_all(ours.iter().map(Container::is_healthy)).await.into_iter().all(|healthy| healthy)
        })
        .await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.command(&["logs", "--no-color", "--tail", "15"]).status();
        }
        let down = self.command(&["down", "--volumes", "--timeout", "10"]).output();
        if !down.is_ok_and(|output| output.status.success()) {
            eprintln!("a test's containers are left: docker ps, docker rm -f");
        }
    }
}
