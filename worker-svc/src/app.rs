//! Puts the worker together: engine, listeners, registration, drain.

mod external;
mod own;

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
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::adapters::kv_publisher::KvPublisher;
use crate::adapters::openai::{DiscoverError, OpenAiEngine, Watch};
use crate::config::{Config, Validated};
use crate::engine::EngineStartError;
use crate::engine::llama::WeightStore;
use crate::grpc::WorkerGrpc;
use crate::identity::Identity;
use crate::metrics::{EngineState, Metrics, RedisMetrics};
use crate::ports::{Backend, KvLog};
use crate::transfer::BootId;
use crate::worker::{Served, Worker};

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
    /// The engine of somebody else cannot be used.
    #[error(transparent)]
    External(#[from] DiscoverError),
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
            StartError::External(engine) if engine.may_pass() => Self::running(error),
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
    thread: Option<std::thread::JoinHandle<()>>,
    served: Arc<Served>,
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

/// What computes tokens, put together, and what is told of it.
struct Engine {
    identity: Identity,
    backend: Arc<dyn Backend>,
    /// What hand-offs need.
    own: Option<Arc<Worker>>,
    card: ModelCardBytes,
    /// `host:port` of the KV data listener.
    kv_address: Option<String>,
    publishing: Option<BoxFuture<'static, ()>>,
    /// Watches an engine of somebody else, once there is a registration to tell.
    external: Option<(Arc<OpenAiEngine>, Watch)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Loads the engine, or finds that of somebody else, binds the listeners and begins to serve.
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
    let channels = Channels::new(
        parts.network.clone(),
        ChannelOptions { token: config.token.clone(), ..ChannelOptions::default() },
    )?;
    let registry = parts.registry.sub_registry_with_prefix("armature_worker");
    let metrics = Metrics::new(registry);
    let base = Base {
        validated: &validated,
        network: &parts.network,
        channels: &channels,
        drain: &parts.drain,
        metrics: &metrics,
        first: fresh_id(),
    };
    let engine = match &validated.external {
        Some(found) => external::engine(&base, found, registry).await?,
        None => own::engine(&base, Arc::clone(&parts.weights), registry).await?,
    };
    let first = base.first;
    registry.register_collector(Box::new(EngineState(Arc::clone(&engine.backend))));
    let served = Arc::new(Served {
        identity: engine.identity.clone(),
        backend: engine.backend,
        drain: parts.drain.clone(),
        tasks: TaskTracker::new(),
        metrics: metrics.clone(),
        own: engine.own,
    });

    let grpc = listener.address().clone();
    let admin = admin_listener.as_ref().map(|listener| listener.address().clone());
    let options = ServerOptions { token: config.token.clone(), ..ServerOptions::default() };
    let service = armature_svc_kit::limited!(WorkerServiceServer::new(WorkerGrpc::new(Arc::clone(&served))));
    let server = Server::new(options, metrics.server)
        .instance(served.backend.instance())
        .service(service)
        .descriptors(FILE_DESCRIPTOR_SET);
    let mut tasks = JoinSet::new();
    if let Some(publishing) = engine.publishing {
        tasks.spawn(publishing);
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
    let discovery = Discovery::new(channels, config.discovery.clone())?.beginning_at(rand::random());
    let fenced = Arc::clone(&served);
    let (registrar, registration) = discovery.register(RegistrationOptions {
        instance: instance(&validated, first, &grpc, admin.as_ref(), engine.kv_address).await,
        model: Some(engine.card),
        fenced: Box::new(move |_| {
            let next = fresh_id();
            fenced.backend.begin_anew(next);
            fenced.metrics.fenced.inc();
            next
        }),
    });
    tasks.spawn(registrar.run(parts.drain.clone()));
    if let Some((engine, watch)) = engine.external {
        tasks.spawn(engine.watch(watch, registration.clone(), parts.drain.clone()));
    }
    ready.set(true);
    tracing::info!(instance = %first, %grpc, model = engine.identity.spec.name, "serving");
    Ok(Running {
        identity: engine.identity,
        instance: served.backend.instance(),
        grpc,
        admin,
        tasks,
        thread: engine.thread,
        served,
        registration,
        drain_limit: validated.drain,
    })
}

/// What the parts of a worker are made from.
struct Base<'a> {
    validated: &'a Validated,
    network: &'a Network,
    channels: &'a Channels,
    drain: &'a Drain,
    metrics: &'a Metrics,
    /// Id of the first incarnation.
    first: InstanceId,
}

impl Base<'_> {
    /// Publishes KV events to Redis, where that is configured.
    fn publishing<L: KvLog>(
        &self,
        log: &Arc<L>,
        identity: &Identity,
        registry: &mut Registry,
    ) -> Result<Option<BoxFuture<'static, ()>>, StartError> {
        let Some(options) = &self.validated.redis else { return Ok(None) };
        let redis = Redis::new(options.clone())
            .map_err(|problem| ConfigError::invalid("kv_events.redis", problem))?;
        let metrics = RedisMetrics::new(registry);
        let namespace = &self.validated.config.namespace;
        let publisher = KvPublisher::new(Arc::clone(log), redis, identity.clone(), namespace, metrics);
        Ok(Some(publisher.run().boxed()))
    }
}

impl Running {
    /// Resolves after a drain, or when this incarnation cannot go on.
    ///
    /// # Errors
    /// [`Lost`]; streams break then, and their frontends migrate them.
    pub async fn finished(mut self) -> Result<(), Lost> {
        let drain = self.served.drain.clone();
        let mut failed = self.served.backend.failed();
        self.served.tasks.spawn(wind_down(Arc::clone(&self.served), self.drain_limit));
        let announce = self.registration.set_status(Status::Draining);
        let lost = tokio::select! {
            _ = drain.run(GONE_LIMIT + self.drain_limit, announce, self.registration.deregister()) => None,
            Ok(reason) = failed.wait_for(Option::is_some) => Some(Lost::Engine(reason.clone().unwrap_or_default())),
        };
        if lost.is_some() {
            // Nobody shall be sent here any more; discovery may be away.
            let _ = tokio::time::timeout(GONE_LIMIT, self.registration.deregister()).await;
        }
        self.served.backend.stop();
        self.served.tasks.close();
        self.tasks.shutdown().await;
        if let Some(thread) = self.thread {
            // The thread ends after the pass it is in.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        lost.map_or(Ok(()), Err)
    }
}

/// Refuses new work once DRAINING has been published or cannot be, and has what is left migrate when time is up.
async fn wind_down(worker: Arc<Served>, limit: Duration) {
    worker.drain.refusing().await;
    worker.backend.drain();
    tokio::select! {
        () = tokio::time::sleep(limit) => worker.backend.migrate_all(),
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

/// Under which address others reach what is bound to `bound`.
async fn advertised(config: &Config, bound: &Address) -> Address {
    let host = config.advertise_host.as_str();
    let configured = (!host.is_empty()).then(|| bound.with_host(host));
    reachable::advertised(bound, configured.as_ref(), &config.discovery).await
}
