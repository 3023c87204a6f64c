//! The services of one process: how they are configured, started, waited for and drained.

use std::path::PathBuf;
use std::time::Duration;

use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::{ListWorkersRequest, WorkerView};
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::network::Network;
use tokio::task::{JoinHandle, JoinSet};

use super::forward::forward;
use super::workers;
use crate::cli::{Engine, UpArgs};
use crate::model;

/// Where discovery listens in this process.
pub(super) const DISCOVERY: &str = "discovery";
const ROUTER: &str = "router";

/// Everything that runs.
pub(super) struct Fleet {
    router: RouterServiceClient<Channel>,
    workers_wanted: usize,
    /// The workers stand before engines of others.
    external: bool,
    workers: Vec<Service>,
    discovery: Service,
    router_service: Service,
    frontend: Service,
    frontend_ready: armature_svc_kit::admin::Ready,
    forward: JoinHandle<()>,
    /// Bound address of the OpenAI API.
    pub(super) http: String,
    /// Bound address of the gRPC API.
    pub(super) grpc: String,
    /// Where the router is reachable from outside.
    pub(super) router_address: Address,
    /// Bound address of the admin server.
    pub(super) admin: Option<String>,
}

/// A service and its shutdown.
pub(super) struct Service {
    name: String,
    drain: Drain,
    task: JoinHandle<Result<(), Failed>>,
}

impl Service {
    /// Runs `work` until `drain` ends it.
    pub(super) fn run<E>(
        name: impl Into<String>,
        drain: Drain,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let task = tokio::spawn(async move { work.await.map_err(Failed::running) });
        Self { name: name.into(), drain, task }
    }

    async fn drain(self) -> Result<(), Failed> {
        self.drain.begin();
        let ended = self.task.await.map_err(Failed::running).and_then(|ended| ended);
        ended.map_err(|failed| failed.during(format!("{} did not end well", self.name)))
    }
}

impl Fleet {
    /// Starts everything; after an error what has been started ends with the process.
    pub(super) async fn start(args: &UpArgs) -> Result<Self, Failed> {
        let models = if args.backend.is_empty() { models(args)? } else { Vec::new() };
        let network = Network::new();
        let channels =
            Channels::new(network.clone(), ChannelOptions::default()).map_err(Failed::configuration)?;
        let discovery = start_discovery(&network).await?;
        let router_service = start_router(&network, args).await?;
        let (router_address, forward) =
            forward(network.clone(), &address(&args.router, "--router")?, Address::mem(ROUTER))
                .await
                .map_err(Failed::running)?;
        // The frontend first: a port in use should be said before a model is loaded.
        let drain = Drain::new();
        let frontend = armature_frontend::app::start(
            armature_frontend::config::Config {
                http: address(&args.http, "--http")?,
                grpc: address(&args.grpc, "--grpc")?,
                admin: Some(address(&args.admin, "--admin")?),
                discovery: vec![Address::mem(DISCOVERY)],
                ..Default::default()
            },
            armature_frontend::app::Parts {
                network: network.clone(),
                registry: Default::default(),
                drain: drain.clone(),
            },
        )
        .await?;
        let (http, grpc) = (frontend.http.clone(), frontend.grpc.clone());
        let (admin, frontend_ready) = (frontend.admin.clone(), frontend.ready.clone());
        let frontend = Service::run("frontend", drain, frontend.finished());
        let workers = match args.backend.as_slice() {
            [] => workers::of_models(&network, args, &models).await?,
            _ => workers::before_backends(&network, args).await?,
        };
        Ok(Self {
            router: armature_svc_kit::limited!(RouterServiceClient::new(channels.to(&Address::mem(ROUTER)))),
            workers_wanted: workers.len(),
            external: !args.backend.is_empty(),
            workers,
            discovery,
            router_service,
            frontend,
            frontend_ready,
            forward,
            http,
            grpc,
            router_address,
            admin,
        })
    }

    /// Waits until the router has every worker's report and the frontend can route.
    pub(super) async fn ready(&self) -> Result<(), Failed> {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            if let Some(lost) = self.workers.iter().find(|worker| worker.task.is_finished()) {
                let lost = &lost.name;
                return Err(Failed::running(format!(
                    "{lost} ended while starting: see the log above (RUST_LOG=info says more)"
                )));
            }
            let (workers, _) = self.workers().await;
            // Of engines of others no blocks are told.
            let known =
                |worker: &WorkerView| worker.index_known || self.external && worker.report_age.is_some();
            let ready = workers.iter().filter(|worker| worker.status == "READY" && known(worker)).count();
            if ready == self.workers_wanted && self.frontend_ready.get() {
                return Ok(());
            }
        }
    }

    /// The workers as the router sees them, and its policy.
    pub(super) async fn workers(&self) -> (Vec<WorkerView>, String) {
        let asked = ListWorkersRequest { namespace: "default".into() };
        let answer = self.router.clone().list_workers(asked).await;
        answer.map(|answer| answer.into_inner()).map(|seen| (seen.workers, seen.policy)).unwrap_or_default()
    }

    /// Ends everything in the order in which nothing is lost: who takes requests first, who knows of them last.
    pub(super) async fn drain(self) -> Result<(), Failed> {
        self.frontend.drain().await?;
        let mut workers = JoinSet::new();
        for worker in self.workers {
            workers.spawn(worker.drain());
        }
        while let Some(ended) = workers.join_next().await {
            ended.map_err(Failed::running)??;
        }
        self.forward.abort();
        self.router_service.drain().await?;
        self.discovery.drain().await
    }
}

/// The address that a flag names.
fn address(text: &str, flag: &str) -> Result<Address, Failed> {
    text.parse().map_err(|error| Failed::configuration(error).during(flag))
}

async fn start_discovery(network: &Network) -> Result<Service, Failed> {
    let drain = Drain::new();
    let config = armature_discovery::config::Config {
        listen: Address::mem(DISCOVERY),
        admin: None,
        ..Default::default()
    };
    let parts = armature_discovery::app::Parts {
        network: network.clone(),
        registry: Default::default(),
        drain: drain.clone(),
    };
    let running = armature_discovery::app::start(config, parts).await?;
    Ok(Service::run("discovery", drain, running.finished()))
}

async fn start_router(network: &Network, args: &UpArgs) -> Result<Service, Failed> {
    use armature_router::config::{Config, LocalPrefill, PolicyConfig};
    use armature_router::domain::policy::PolicyKind;
    let name = PolicyKind::named(&args.policy).ok_or_else(|| {
        let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
        wrong(format!("--policy: {:?} is none of {}", args.policy, names.join(", ")))
    })?;
    let drain = Drain::new();
    let config = Config {
        listen: Address::mem(ROUTER),
        admin: None,
        discovery: vec![Address::mem(DISCOVERY)],
        // Who starts prefill workers wants them used, also while one idle machine would be as fast alone.
        policy: PolicyConfig { name, local_prefill: LocalPrefill::Fallback, ..Default::default() },
        ..Default::default()
    };
    let parts = armature_router::app::Parts {
        network: network.clone(),
        registry: Default::default(),
        drain: drain.clone(),
    };
    let running = armature_router::app::start(config, parts).await?;
    Ok(Service::run("router", drain, running.finished()))
}

/// A flag that cannot be meant.
pub(super) fn wrong(problem: impl Into<String>) -> Failed {
    Failed::configuration(problem.into())
}

/// The model files to serve; one `None` for the simulated engine.
fn models(args: &UpArgs) -> Result<Vec<Option<PathBuf>>, Failed> {
    match (args.engine, args.model.as_slice()) {
        (Engine::Sim, []) => Ok(vec![None]),
        (Engine::Sim, _) => Err(wrong("--model goes with --engine llama: the simulated engine needs none")),
        (Engine::Llama, []) => {
            let path = model::reference().map_err(Failed::configuration)?;
            if !path.exists() {
                return Err(wrong(format!(
                    "there is no model at {}: run `armature model fetch`, name a GGUF file with --model, or start with --engine sim",
                    path.display()
                )));
            }
            Ok(vec![Some(path)])
        }
        (Engine::Llama, paths) => {
            for path in paths {
                if path.is_dir() {
                    return Err(wrong(format!(
                        "--model: {} is a folder: name the GGUF file itself",
                        path.display()
                    )));
                }
                if !path.exists() {
                    return Err(wrong(format!("--model: there is no file {}", path.display())));
                }
            }
            Ok(paths.iter().cloned().map(Some).collect())
        }
    }
}
