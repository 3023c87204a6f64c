//! The suite as separate processes, each service with its own binary.

use std::path::{Path, PathBuf};

use armature_contracts::discovery::v1::DeregisterRequest;
use armature_contracts::discovery::v1::discovery_service_client::DiscoveryServiceClient;
use futures_util::future::join_all;
use serde_json::json;
use tempfile::TempDir;

use crate::between::Between;
use crate::client::Client;
use crate::process::{Process, free_port};
use crate::wait_until;

/// Requests at once while waiting for every worker to serve.
const BURST: usize = 24;

/// Discovery, routers, frontend and workers, each a process.
#[derive(Debug)]
pub struct Cluster {
    /// By name. Before the folder, which holds their logs.
    pub processes: Vec<Process>,
    dir: TempDir,
    discovery: String,
    /// Where the others look for discovery.
    found_at: String,
    model: Option<PathBuf>,
    /// The frontend's OpenAI API.
    pub client: Client,
    /// `host:port` of the frontend's gRPC API.
    pub grpc: String,
    http: String,
    /// `host:port` of the gRPC service of routers and workers, by name.
    listening: Vec<(String, String)>,
}

impl Cluster {
    /// Discovery, one router and one frontend; workers run `model`, or the simulated engine without one.
    pub fn start(model: Option<&Path>) -> Self {
        let mut cluster = Self::empty(model);
        cluster.discovery();
        cluster.router("router-1");
        cluster.frontend(&[]);
        cluster
    }

    /// The same, but every service reaches every other through a door.
    pub fn start_between(model: Option<&Path>, doors: &Between) -> Self {
        let mut cluster = Self::empty(model);
        cluster.discovery();
        cluster.found_at = doors.door(&cluster.discovery);
        cluster.router("router-1");
        cluster.frontend(&[]);
        cluster
    }

    /// One router and one frontend that look for discovery at `host:port`.
    pub fn start_with_discovery_at(model: Option<&Path>, discovery: &str) -> Self {
        let mut cluster = Self::empty(model);
        cluster.found_at = discovery.to_owned();
        cluster.router("router-1");
        cluster.frontend(&[]);
        cluster
    }

    fn empty(model: Option<&Path>) -> Self {
        let address = || format!("127.0.0.1:{}", free_port());
        let (http, grpc, discovery) = (address(), address(), address());
        Self {
            dir: tempfile::tempdir().expect("a folder"),
            processes: Vec::new(),
            found_at: discovery.clone(),
            discovery,
            model: model.map(Path::to_owned),
            client: Client::new(&format!("http://{http}")),
            grpc,
            http,
            listening: Vec::new(),
        }
    }

    /// Starts discovery, at the address it had.
    pub fn discovery(&mut self) {
        let sets = [("listen", self.discovery.clone()), ("admin", "127.0.0.1:0".into())];
        self.process("discovery", "armature-discovery", &sets);
    }

    /// Says to discovery that an instance is gone, whatever it thinks of that; `instance` as 16 hex digits.
    pub fn announce_gone(&self, instance: &str) -> impl Future<Output = ()> + Send + 'static + use<> {
        let discovery = format!("http://{}", self.discovery);
        let instance_id = u64::from_str_radix(instance, 16).expect("an instance id");
        async move {
            let mut client =
                DiscoveryServiceClient::connect(discovery).await.expect("discovery takes connections");
            client.deregister(DeregisterRequest { instance_id }).await.expect("discovery takes it");
        }
    }

    /// Starts a router.
    pub fn router(&mut self, name: &str) {
        let sets = [
            ("listen", self.listens(name)),
            ("admin", "127.0.0.1:0".into()),
            ("discovery", format!("[\"{}\"]", self.found_at)),
            ("policy.local_prefill", "fallback".into()),
        ];
        self.process(name, "armature-router", &sets);
    }

    /// Starts the frontend, at the addresses it had; `more` are further settings.
    pub fn frontend(&mut self, more: &[(&str, &str)]) {
        let mut sets = vec![
            ("http", self.http.clone()),
            ("grpc", self.grpc.clone()),
            ("admin", "127.0.0.1:0".into()),
            ("discovery", format!("[\"{}\"]", self.found_at)),
            ("tenant_header", "x-tenant".into()),
        ];
        sets.extend(more.iter().map(|(key, value)| (*key, (*value).to_owned())));
        self.process("frontend", "armature-frontend", &sets);
    }

    /// Starts a worker with a role; `more` are further settings. Returns `host:port` of its admin pages.
    pub fn worker(&mut self, name: &str, role: &str, more: &[(&str, &str)]) -> String {
        let admin = format!("127.0.0.1:{}", free_port());
        let mut sets = vec![
            ("role", role.to_owned()),
            ("listen", self.listens(name)),
            ("kv_listen", "127.0.0.1:0".into()),
            ("admin", admin.clone()),
            ("discovery", format!("[\"{}\"]", self.found_at)),
            ("shm_dir", self.dir.path().join("shm").display().to_string()),
            ("poison_blocks", "true".into()),
            ("kv_blocks", "256".into()),
        ];
        match &self.model {
            Some(model) => {
                sets.push(("model", model.display().to_string()));
                sets.push(("cache_dir", self.dir.path().join("cache").display().to_string()));
            }
            None => sets.push(("engine", "sim".into())),
        }
        sets.extend(more.iter().map(|(key, value)| (*key, (*value).to_owned())));
        self.process(name, "armature-worker", &sets);
        admin
    }

    /// Where each service that has been started takes gRPC: `host:port`.
    pub fn services(&self) -> Vec<&str> {
        let others = self.listening.iter().map(|(_, address)| address);
        [&self.discovery, &self.grpc].into_iter().chain(others).map(String::as_str).collect()
    }

    /// Where discovery (if it was started here), or a router or worker of this name, takes gRPC: `host:port`.
    ///
    /// # Panics
    /// When no such process was started.
    pub fn address(&self, name: &str) -> &str {
        if name == "discovery" {
            return &self.discovery;
        }
        let listening = self.listening.iter().find(|(other, _)| other == name);
        listening.map(|(_, address)| address.as_str()).expect("a process of this name")
    }

    fn listens(&mut self, name: &str) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        self.listening.retain(|(other, _)| other != name);
        self.listening.push((name.to_owned(), address.clone()));
        address
    }

    fn process(&mut self, name: &str, binary: &str, sets: &[(&str, String)]) {
        let args: Vec<String> =
            sets.iter().flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]).collect();
        self.processes.push(Process::start(self.dir.path(), name, binary, &args));
    }

    /// The process of this name that was started last.
    ///
    /// # Panics
    /// When there is none.
    pub fn get(&mut self, name: &str) -> &mut Process {
        self.processes
            .iter_mut()
            .rev()
            .find(|process| process.name() == name)
            .expect("a process of this name")
    }

    /// Waits until requests are served, and by that every worker that `seen` names has been: the numbers of
    /// distinct decode and prefill workers that answers name. They come in bursts of long prompts: fewer
    /// would all go to the worker that has run before and is faster than one of which nothing is known yet seems.
    pub async fn serving(&mut self, model: &str, decode: usize, prefill: usize) {
        let client = self.client.clone();
        let mut seen = (std::collections::HashSet::new(), std::collections::HashSet::new());
        let mut salt = 0;
        wait_until("every worker serves", async || {
            let burst = (0..BURST).map(|_| {
                salt += 1;
                let prompt = format!("{salt}{}", " warm up".repeat(50));
                let body = json!({"model": model, "prompt": prompt, "max_tokens": 8, "ignore_eos": true});
                let client = client.clone();
                async move { client.post("/v1/completions", &body).await }
            });
            for answer in join_all(burst).await.into_iter().flatten().filter(|answer| answer.status == 200) {
                seen.0.insert(answer.header("x-armature-decode-worker"));
                seen.1.extend(Some(answer.header("x-armature-prefill-worker")).filter(|w| !w.is_empty()));
            }
            seen.0.len() >= decode && seen.1.len() >= prefill
        })
        .await;
    }
}
