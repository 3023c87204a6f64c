//! The services of one process: how they are configured, started, waited for and drained.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::{ListWorkersRequest, WorkerView};
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::network::Network;
use armature_worker::config::{Config as WorkerConfig, EngineKind, Transport};
use armature_worker::engine::llama::WeightStore;
use armature_worker::identity::Role;
use tokio::task::{JoinHandle, JoinSet};

use super::forward::forward;
use crate::cli::{Engine, UpArgs};
use crate::model;

const DISCOVERY: &str = "discovery";
const ROUTER: &str = "router";
/// KV blocks of a worker on the real engine: one sequence of SmolLM2's whole context.
const LLAMA_BLOCKS: usize = 512;
const SIM_BLOCKS: usize = 16_384;

/// Everything that runs.
pub(super) struct Fleet {
    router: RouterServiceClient<Channel>,
    workers_wanted: usize,
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
struct Service {
    name: String,
    drain: Drain,
    task: JoinHandle<Result<(), Failed>>,
}

impl Service {
    /// Runs `work` until `drain` ends it.
    fn run<E>(
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
        let models = models(args)?;
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
        let workers = start_workers(&network, args, &models).await?;
        Ok(Self {
            router: armature_svc_kit::limited!(RouterServiceClient::new(channels.to(&Address::mem(ROUTER)))),
            workers_wanted: workers.len(),
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
            let ready =
                workers.iter().filter(|worker| worker.status == "READY" && worker.index_known).count();
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
fn wrong(problem: impl Into<String>) -> Failed {
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

/// The name under which a file is served: the reference model's own, else the file's.
fn served_name(path: &Path) -> String {
    if model::reference().is_ok_and(|reference| reference == path) {
        return armature_worker::reference_model::NAME.into();
    }
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Starts the workers of each model: all of a model share its weights.
async fn start_workers(
    network: &Network,
    args: &UpArgs,
    models: &[Option<PathBuf>],
) -> Result<Vec<Service>, Failed> {
    let roles: Vec<Role> =
        [(Role::Prefill, args.prefill), (Role::Decode, args.decode), (Role::Aggregated, args.aggregated)]
            .into_iter()
            .flat_map(|(role, count)| std::iter::repeat_n(role, count))
            .collect();
    if args.decode + args.aggregated == 0 {
        return Err(wrong("nothing would decode: start at least one worker with --decode or --aggregated"));
    }
    let weights: Arc<WeightStore> = Arc::default();
    // Sockets of this process only; the folder goes when the process does.
    let shm_dir = std::env::temp_dir().join(format!("armature-{}", std::process::id()));
    let mut services = Vec::new();
    for model in models {
        for role in &roles {
            let name = format!("worker-{}-{}", services.len() + 1, format!("{role:?}").to_lowercase());
            let config = worker_config(args, model.as_deref(), *role, &name, &shm_dir)?;
            if services.len() % roles.len() == 0 {
                eprintln!(
                    "loading {}",
                    model.as_deref().map_or("sim".into(), |path| path.display().to_string())
                );
            }
            let drain = Drain::new();
            let parts = armature_worker::app::Parts {
                network: network.clone(),
                registry: Default::default(),
                weights: Arc::clone(&weights),
                drain: drain.clone(),
            };
            let running = armature_worker::app::start(config, parts)
                .await
                .map_err(|error| Failed::from(error).during(format!("cannot start {name}")))?;
            services.push(Service::run(name, drain, running.finished()));
        }
    }
    Ok(services)
}

fn worker_config(
    args: &UpArgs,
    model: Option<&Path>,
    role: Role,
    name: &str,
    shm_dir: &Path,
) -> Result<WorkerConfig, Failed> {
    let transports: Vec<Transport> = args
        .transports
        .iter()
        .map(|text| match text.as_str() {
            "shm" => Ok(Transport::Shm),
            "tcp" => Ok(Transport::Tcp),
            other => Err(wrong(format!("--transports: {other:?} is none of shm, tcp"))),
        })
        .collect::<Result<_, _>>()?;
    let engine = if model.is_some() { EngineKind::Llama } else { EngineKind::Sim };
    let blocks = if model.is_some() { LLAMA_BLOCKS } else { SIM_BLOCKS };
    let mut config = WorkerConfig {
        role,
        engine,
        served_name: model.map(served_name).unwrap_or_default(),
        model: model.map(Path::to_owned),
        cache_dir: Some(model::cache_dir().map_err(Failed::configuration)?.join("weights")),
        threads: args.threads,
        kv_blocks: args.kv_blocks.unwrap_or(blocks),
        listen: Address::mem(name),
        kv_listen: Address::tcp("127.0.0.1", 0),
        admin: None,
        discovery: vec![Address::mem(DISCOVERY)],
        transports,
        shm_dir: shm_dir.to_owned(),
        ..WorkerConfig::default()
    };
    config.sim.speedup = args.speedup;
    Ok(config)
}
