//! Puts the worker together: engine, listeners, registration, drain.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::FILE_DESCRIPTOR_SET;
use armature_contracts::ids::InstanceId;
use armature_contracts::worker::v1::worker_service_server::WorkerServiceServer;
use armature_kv_redis::Redis;
use armature_svc_kit::address::Address;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::config::ConfigError;
use armature_svc_kit::discovery_client::{
    Component, Discovery, Instance, ModelCardBytes, NoEndpoint, Registration, RegistrationOptions, Status,
};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::network::{BindError, Network};
use armature_svc_kit::reachable;
use armature_svc_kit::server::{Server, ServerOptions};
use prometheus_client::registry::Registry;
use prost::Message;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::adapters::kv_publisher::KvPublisher;
use crate::card;
use crate::config::{Config, Transport, Validated};
use crate::domain::scheduler::SchedulerConfig;
use crate::driver::Driver;
use crate::engine::llama::WeightStore;
use crate::engine::{self, EngineStartError, Loaded};
use crate::faults::FaultPoints;
use crate::grpc::WorkerGrpc;
use crate::identity::Identity;
use crate::kv_memory::KvMemory;
use crate::metrics::{EngineState, Metrics, RedisMetrics};
use crate::transfer::{
    BootId, HostLanding, HostSource, Incarnation, LandingOptions, ShmExport, ShmLanding, SourceOptions,
    TcpLanding,
};
use crate::worker::{PrefillUsed, Worker};

/// What the worker is given.
#[derive(Debug)]
pub struct Parts {
    /// Binds and connects.
    pub network: Network,
    /// Where instruments are registered.
    pub registry: Registry,
    /// Weights that workers of one process share.
    pub weights: Arc<WeightStore>,
    /// The shutdown.
    pub drain: Drain,
}

/// Why the worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineStartError),
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Something the system refused.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The service token cannot be sent.
    #[error(transparent)]
    Token(#[from] armature_svc_kit::channel::TokenError),
    /// Nowhere to register.
    #[error(transparent)]
    Discovery(#[from] NoEndpoint),
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        match &error {
            // These may be better at the next try: a port, memory, a folder.
            StartError::Bind(_) | StartError::System { .. } => Self::running(error),
            StartError::Engine(engine) if engine.is_shortage() => Self::running(error),
            _ => Self::configuration(error),
        }
    }
}

/// Time to tell discovery that this worker is gone, and for the last messages after everything has migrated.
const GONE_LIMIT: Duration = Duration::from_secs(3);

fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> StartError {
    let what = what.into();
    |source| StartError::System { what, source }
}

/// A worker that serves.
#[derive(Debug)]
pub struct Running {
    /// The fixed facts.
    pub identity: Identity,
    /// The id of the present incarnation.
    pub instance: watch::Receiver<InstanceId>,
    /// Bound address of the gRPC service.
    pub grpc: Address,
    /// Bound address of the admin server.
    pub admin: Option<Address>,
    tasks: JoinSet<()>,
    thread: std::thread::JoinHandle<()>,
    worker: Arc<Worker>,
    registration: Registration,
    drain_limit: Duration,
}

/// Why a worker has ended otherwise than by a drain.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The engine is unusable.
    #[error("the engine failed: {0}")]
    Engine(String),
}

/// Loads the engine, binds the listeners and begins to serve.
///
/// # Errors
/// [`StartError`]; nothing is left running.
pub async fn start(config: Config, mut parts: Parts) -> Result<Running, StartError> {
    let validated = config.validate()?;
    let config = &validated.config;
    let listener = parts.network.bind(&config.listen).await?;
    let admin_listener = match &config.admin {
        Some(address) => Some(parts.network.bind(address).await?),
        None => None,
    };
    let loaded = load(config.clone(), Arc::clone(&parts.weights)).await?;
    let Loaded { engine, tokenizer, template } = loaded;
    let identity = Identity::new(engine.spec().clone());
    let first = fresh_id();
    let kv = KvMemory::new(identity.spec.kv, config.kv_blocks).map_err(system("cannot make the KV pool"))?;
    let kv = Arc::new(kv);

    let (driver, thread) =
        Driver::start(engine, Arc::clone(&kv), scheduler(config, &identity), config.poison_blocks, first)
            .map_err(system("cannot start the engine's thread"))?;
    let registry = parts.registry.sub_registry_with_prefix("armature_worker");
    let metrics = Metrics::new(registry);
    registry.register_collector(Box::new(EngineState(Arc::clone(&driver))));
    let publisher = match &validated.redis {
        Some(options) => {
            let redis = Redis::new(options.clone())
                .map_err(|problem| ConfigError::invalid("kv_events.redis", problem))?;
            let metrics = RedisMetrics::new(registry);
            let log = Arc::clone(&driver);
            Some(KvPublisher::new(log, redis, identity.clone(), &config.namespace, metrics))
        }
        None => None,
    };
    let Endpoints { landing, source, kv_address } = endpoints(&parts.network, &validated, first, &kv).await?;
    let channels = Channels::new(
        parts.network.clone(),
        ChannelOptions { token: config.token.clone(), ..ChannelOptions::default() },
    )?;
    let worker = Arc::new(Worker {
        identity: identity.clone(),
        driver,
        landing: Box::new(landing),
        source: Box::new(source),
        channels,
        drain: parts.drain.clone(),
        tasks: TaskTracker::new(),
        metrics: metrics.clone(),
        faults: FaultPoints(config.fault_point),
        limits: validated.handoff,
        prefill_used: PrefillUsed::new(scheduler(config, &identity).max_ended),
    });

    let grpc = listener.address().clone();
    let admin = admin_listener.as_ref().map(|listener| listener.address().clone());
    let options = ServerOptions { token: config.token.clone(), ..ServerOptions::default() };
    let service = armature_svc_kit::limited!(WorkerServiceServer::new(WorkerGrpc::new(Arc::clone(&worker))));
    let server = Server::new(options, metrics.server)
        .instance(worker.driver.instance())
        .service(service)
        .descriptors(FILE_DESCRIPTOR_SET);
    let mut tasks = JoinSet::new();
    if let Some(publisher) = publisher {
        tasks.spawn(publisher.run());
    }
    let drain = parts.drain.clone();
    tasks.spawn(async move {
        if let Err(error) = server.serve(listener, drain).await {
            tracing::error!(%error, "cannot serve");
        }
    });
    let ready = Ready::new();
    if let Some(listener) = admin_listener {
        let registry = Arc::new(parts.registry);
        let version = env!("CARGO_PKG_VERSION");
        let admin = Admin { service: "worker", version, ready: ready.clone(), registry };
        tasks.spawn(admin.serve(listener, parts.drain.clone()));
    }
    let discovery =
        Discovery::new(worker.channels.clone(), config.discovery.clone())?.beginning_at(rand::random());
    let fenced = Arc::clone(&worker);
    let (registrar, registration) = discovery.register(RegistrationOptions {
        instance: instance(&validated, first, &grpc, admin.as_ref(), kv_address).await,
        model: Some(ModelCardBytes {
            card: card::card(config, &identity, &tokenizer, &template).encode_to_vec().into(),
            artifacts: vec![tokenizer.into(), template.into()],
        }),
        fenced: Box::new(move |_| {
            let next = fresh_id();
            fenced.driver.begin_anew(next);
            fenced.metrics.fenced.inc();
            next
        }),
    });
    tasks.spawn(registrar.run(parts.drain.clone()));
    ready.set(true);
    tracing::info!(instance = %first, %grpc, model = identity.spec.name, "serving");
    Ok(Running {
        identity,
        instance: worker.driver.instance(),
        grpc,
        admin,
        tasks,
        thread,
        worker,
        registration,
        drain_limit: validated.drain,
    })
}

impl Running {
    /// Resolves after a drain, or when this incarnation cannot go on.
    ///
    /// # Errors
    /// [`Lost`]; streams break then, and their frontends migrate them.
    pub async fn finished(mut self) -> Result<(), Lost> {
        let drain = self.worker.drain.clone();
        let mut failed = self.worker.driver.failed();
        self.worker.tasks.spawn(wind_down(Arc::clone(&self.worker), self.drain_limit));
        let announce = self.registration.set_status(Status::Draining);
        let lost = tokio::select! {
            _ = drain.run(GONE_LIMIT + self.drain_limit, announce, self.registration.deregister()) => None,
            Ok(reason) = failed.wait_for(Option::is_some) => Some(Lost::Engine(reason.clone().unwrap_or_default())),
        };
        if lost.is_some() {
            // Nobody shall be sent here any more; discovery may be away.
            let _ = tokio::time::timeout(GONE_LIMIT, self.registration.deregister()).await;
        }
        self.worker.driver.stop();
        self.worker.tasks.close();
        self.tasks.shutdown().await;
        let thread = self.thread;
        // The thread ends after the pass it is in.
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        lost.map_or(Ok(()), Err)
    }
}

/// Refuses new work once DRAINING has been published or cannot be, and has what is left migrate when time is up.
async fn wind_down(worker: Arc<Worker>, limit: Duration) {
    worker.drain.refusing().await;
    worker.driver.drain();
    tokio::select! {
        () = tokio::time::sleep(limit) => worker.driver.migrate_all(),
        () = worker.drain.stopping() => {}
    }
}

/// An id for an incarnation: random, and never 0.
fn fresh_id() -> InstanceId {
    InstanceId(rand::random_range(1..=u64::MAX))
}

/// What is registered.
async fn instance(
    validated: &Validated,
    id: InstanceId,
    grpc: &Address,
    admin: Option<&Address>,
    kv: Option<String>,
) -> Instance {
    let config = &validated.config;
    let mut instance =
        Instance::starting(id, &config.namespace, Component::Worker, &advertised(config, grpc).await);
    if let Some(admin) = admin {
        instance.addresses.insert("admin".into(), advertised(config, admin).await.to_string());
    }
    if let Some(kv) = kv {
        instance.addresses.insert("kv".into(), kv);
    }
    instance.status = Status::Ready;
    instance.labels = config.labels.clone();
    instance.boot_id = BootId::of_this_host().map(|boot| boot.0).unwrap_or_default();
    instance
}

/// Both ends of the data plane.
struct Endpoints {
    landing: HostLanding,
    source: HostSource,
    /// `host:port` of the KV data listener.
    kv_address: Option<String>,
}

/// Where KV lands and leaves, on the transports that are configured.
async fn endpoints(
    network: &Network,
    validated: &Validated,
    first: InstanceId,
    kv: &Arc<KvMemory>,
) -> Result<Endpoints, StartError> {
    let Config { transports, shm_dir, .. } = &validated.config;
    let tcp = match transports.contains(&Transport::Tcp) {
        true => Some(tcp_landing(network, &validated.config).await?),
        false => None,
    };
    let kv_address = tcp.as_ref().map(|tcp| tcp.advertised.clone());
    let shm = transports.contains(&Transport::Shm);
    if shm {
        std::fs::create_dir_all(shm_dir)
            .map_err(system(format!("shm_dir: cannot make the folder {}", shm_dir.display())))?;
    }
    let boot_id = BootId::of_this_host().map_err(system("cannot read the boot id"))?;
    let landing = HostLanding::start(
        Arc::clone(kv),
        LandingOptions::default(),
        tcp,
        shm.then(|| ShmLanding { directory: shm_dir.clone(), boot_id: boot_id.clone() }),
    );
    let export =
        shm.then(|| ShmExport { directory: shm_dir.clone(), boot_id, incarnation: Incarnation(first.0) });
    let source = HostSource::start(Arc::clone(kv), SourceOptions::default(), export)
        .map_err(system(format!("shm_dir: cannot listen in {}", shm_dir.display())))?;
    Ok(Endpoints { landing, source, kv_address })
}

async fn tcp_landing(network: &Network, config: &Config) -> Result<TcpLanding, StartError> {
    let listener = network.bind_sockets(&config.kv_listen).await?;
    let bound: Address = listener.local_addr().map_err(system("kv_listen"))?.into();
    Ok(TcpLanding { listener, advertised: advertised(config, &bound).await.to_string() })
}

/// Under which address others reach what is bound to `bound`.
async fn advertised(config: &Config, bound: &Address) -> Address {
    let host = config.advertise_host.as_str();
    let configured = (!host.is_empty()).then(|| bound.with_host(host));
    reachable::advertised(bound, configured.as_ref(), &config.discovery).await
}

async fn load(config: Config, weights: Arc<WeightStore>) -> Result<Loaded, StartError> {
    let joined = tokio::task::spawn_blocking(move || engine::load(&config, &weights)).await;
    Ok(joined.expect("loading does not panic")?)
}

fn scheduler(config: &Config, me: &Identity) -> SchedulerConfig {
    let settings = &config.scheduler;
    let mut scheduler = SchedulerConfig::new(config.kv_blocks, me.block_size(), me.spec.context_length);
    scheduler.max_running = settings.max_running;
    scheduler.max_waiting = settings.max_waiting;
    scheduler.migrated_in_a_row = settings.migrated_in_a_row;
    scheduler.max_batched_tokens = settings.max_batched_tokens;
    scheduler.source_fraction = settings.source_fraction;
    scheduler.grant_fraction = settings.grant_fraction;
    scheduler.step.target = Duration::from_secs_f64(settings.step_target_ms / 1e3);
    scheduler
}
