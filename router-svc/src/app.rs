//! Puts a router together: what it listens on and how it ends come in as arguments.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::FILE_DESCRIPTOR_SET;
use armature_contracts::ids::InstanceId;
use armature_contracts::router::v1::router_service_server::RouterServiceServer;
use armature_kv_redis::Redis;
use armature_svc_kit::address::Address;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::channel::{ChannelOptions, Channels, TokenError};
use armature_svc_kit::config::ConfigError;
use armature_svc_kit::discovery_client::{
    Component, Discovery, Instance, NoEndpoint, Registration, RegistrationOptions, Status, WatchOptions,
    health_probe,
};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::limited;
use armature_svc_kit::network::{BindError, Listener, Network};
use armature_svc_kit::reachable::advertised;
use armature_svc_kit::server::{ReflectionError, Server, ServerMetrics, ServerOptions};
use futures_util::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::time::{interval, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::adapters::membership::{Membership, ViewedRouters};
use crate::adapters::record::writer::Recorder;
use crate::adapters::redis::{Directory, RedisReader};
use crate::adapters::worker_feed::Feeds;
use crate::config::{Config, Invalid};
use crate::grpc::service::RouterEndpoint;
use crate::metrics::{Metrics, RedisMetrics};
use crate::shared::Shared;

/// How often deadlines are looked at and gauges shown.
const TICK: Duration = Duration::from_millis(250);

/// What a process gives to each of its services.
pub struct Parts {
    /// Where to listen and connect.
    pub network: Network,
    /// Instruments are registered here; the admin server shows it.
    pub registry: Registry,
    /// How the service ends.
    pub drain: Drain,
}

/// Why a router could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] Invalid),
    /// The settings of Redis are wrong.
    #[error(transparent)]
    Redis(#[from] ConfigError),
    /// The service token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Decisions cannot be recorded.
    #[error("decisions cannot be recorded in {}", dir.display())]
    Record {
        /// Where.
        dir: std::path::PathBuf,
        /// Why not.
        #[source]
        error: std::io::Error,
    },
    /// There is no discovery to ask.
    #[error(transparent)]
    Discovery(#[from] NoEndpoint),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        match error {
            // Whoever has it may be gone at the next try.
            StartError::Bind(_) => Self::running(error),
            _ => Self::configuration(error),
        }
    }
}

/// Why a running router ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The descriptors for reflection are broken.
    #[error(transparent)]
    Reflection(#[from] ReflectionError),
    /// A part of it panicked.
    #[error("the router stopped")]
    Stopped(#[from] tokio::task::JoinError),
}

/// A router that listens. Dropping it stops it at once.
pub struct Running {
    /// Bound address of the gRPC service.
    pub grpc: String,
    /// Bound address of the admin server.
    pub admin: Option<String>,
    /// Its incarnation.
    pub instance: InstanceId,
    task: AbortOnDropHandle<Result<(), RunError>>,
}

impl Running {
    /// Resolves when the router has drained.
    pub async fn finished(self) -> Result<(), RunError> {
        self.task.await?
    }
}

/// Starts a router: returns once it listens.
pub async fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let Parts { network, mut registry, drain } = parts;
    let valid = config.validate()?;
    let grpc = network.bind(&config.listen).await?;
    let admin = match &config.admin {
        Some(address) => Some(network.bind(address).await?),
        None => None,
    };
    let channel_options = ChannelOptions { token: config.token.clone(), ..ChannelOptions::default() };
    let channels = Channels::new(network, channel_options)?;
    let discovery = Discovery::new(channels.clone(), config.discovery.clone())?.beginning_at(rand::random());

    let metrics = Metrics::new(&mut registry);
    Metrics::bounds(
        &mut registry,
        [
            ("index_max_entries", config.index.max_entries),
            ("index_max_bytes", config.index.max_bytes),
            ("index_max_predicted_entries", config.index.predicted_entries),
            ("index_max_approximate_entries", config.index.approximate_entries),
            ("reservations_max_open", config.reservations.max_open),
            ("decision_max_bytes", config.explain.max_bytes),
            ("backlog_max_requests", config.backlog.max_requests),
            ("backlog_max_bytes", config.backlog.max_bytes),
        ],
    );
    let server_metrics = ServerMetrics::new(registry.sub_registry_with_prefix("armature_router"));
    let instance = fresh_id();
    let recorder = match &config.explain.record_dir {
        Some(dir) => {
            let recorder = Recorder::start(dir, config.explain.record_max_bytes, metrics.clone());
            Some(recorder.map_err(|error| StartError::Record { dir: dir.clone(), error })?)
        }
        None => None,
    };
    let shared = Shared::new(&config, valid, instance, rand::random(), metrics, recorder);
    let reader = match config.kv_events.redis.validate()? {
        Some(options) => {
            let redis =
                Redis::new(options).map_err(|problem| ConfigError::invalid("kv_events.redis", problem))?;
            Some(RedisReader {
                redis: Arc::new(redis),
                namespace: config.namespace.clone(),
                directory: Arc::new(Directory::default()),
                shared: shared.clone(),
                loads_at_once: config.feed.snapshots_at_once,
                max_snapshot_blocks: config.index.max_entries as u64,
                metrics: RedisMetrics::new(&mut registry),
            })
        }
        None => None,
    };

    let address = advertised(grpc.address(), config.advertise.as_ref(), &config.discovery).await;
    let running = (grpc.address().to_string(), admin.as_ref().map(|listener| listener.address().to_string()));
    let parts =
        Assembled { config, shared, discovery, channels, drain, address, server_metrics, registry, reader };
    let task = AbortOnDropHandle::new(tokio::spawn(parts.run(grpc, admin)));
    Ok(Running { grpc: running.0, admin: running.1, instance, task })
}

struct Assembled {
    config: Config,
    shared: Arc<Shared>,
    discovery: Discovery,
    channels: Channels,
    drain: Drain,
    address: Address,
    server_metrics: ServerMetrics,
    registry: Registry,
    reader: Option<RedisReader<Redis>>,
}

impl Assembled {
    async fn run(self, grpc: Listener, admin: Option<Listener>) -> Result<(), RunError> {
        let Self {
            config,
            shared,
            discovery,
            channels,
            drain,
            address,
            server_metrics,
            mut registry,
            reader,
        } = self;
        let (watcher, members) = discovery.watch(WatchOptions {
            namespace: config.namespace.clone(),
            components: vec![Component::Worker, Component::Router],
            last_good: config.view_file.clone(),
            probe: health_probe(channels.clone()),
        });
        let prefixed = registry.sub_registry_with_prefix("armature_router");
        members.register_metrics(prefixed);
        channels.register_metrics(prefixed);
        let renamed = shared.clone();
        let (registrar, registration) = discovery.register(RegistrationOptions {
            instance: Instance::starting(shared.instance(), &config.namespace, Component::Router, &address),
            model: None,
            fenced: Box::new(move |_| {
                let id = fresh_id();
                renamed.renamed(id);
                id
            }),
        });
        let feeds = Feeds {
            shared: shared.clone(),
            config: config.feed.clone(),
            snapshots: Arc::new(Semaphore::new(config.feed.snapshots_at_once)),
            max_snapshot_blocks: config.index.max_entries as u64,
            directory: reader.as_ref().map(|reader| reader.directory.clone()),
        };
        let reading: BoxFuture<'static, ()> = match reader {
            Some(reader) => Box::pin(reader.run()),
            None => Box::pin(std::future::ready(())),
        };
        let endpoint = RouterEndpoint {
            shared: shared.clone(),
            drain: drain.clone(),
            channels: channels.clone(),
            routers: Arc::new(ViewedRouters(members.clone())),
            max_wait: Duration::from_millis(config.backlog.max_wait_ms),
        };
        let options = ServerOptions {
            max_in_flight: config.max_in_flight,
            token: config.token.clone(),
            ..Default::default()
        };
        let server = Server::new(options, server_metrics)
            .service(limited!(RouterServiceServer::new(endpoint)))
            .descriptors(FILE_DESCRIPTOR_SET);

        let ready = Ready::new();
        let first_reports = async {
            members.seen().await;
            ready.set(true);
            let limit = Duration::from_millis(config.feed.ready_after_ms);
            if timeout(limit, shared.all_reported()).await.is_err() {
                tracing::warn!("some workers have not reported, serving without them");
            }
            registration.request_status(Status::Ready);
        };
        let admin = async {
            let Some(listener) = admin else { return };
            let registry = Arc::new(registry);
            let admin = Admin {
                service: "router",
                version: env!("CARGO_PKG_VERSION"),
                ready: ready.clone(),
                registry,
            };
            admin.serve(listener, drain.clone()).await;
        };
        let watcher: BoxFuture<'static, ()> = Box::pin(watcher.run(drain.clone()));
        let registrar: BoxFuture<'static, ()> = Box::pin(registrar.run(drain.clone()));
        let membership = Membership::new(discovery, channels, feeds).run(members.clone());
        let (served, ..) = tokio::join!(
            server.serve(grpc, drain.clone()),
            admin,
            watcher,
            registrar,
            until(drain.stopping(), membership),
            until(drain.stopping(), reading),
            until(drain.stopping(), ticks(&shared)),
            until(drain.draining(), first_reports),
            refuse_waiting(&drain, &shared),
            shut_down(&drain, &registration, Duration::from_secs(config.drain_seconds)),
        );
        Ok(served?)
    }
}

async fn shut_down(drain: &Drain, registration: &Registration, limit: Duration) {
    drain.run(limit, registration.set_status(Status::Draining), registration.deregister()).await;
}

async fn ticks(shared: &Shared) {
    let mut ticks = interval(TICK);
    loop {
        ticks.tick().await;
        shared.tick();
    }
}

async fn refuse_waiting(drain: &Drain, shared: &Shared) {
    drain.refusing().await;
    shared.refuse_waiting();
}

async fn until(end: impl Future<Output = ()>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = end => {}
        () = work => {}
    }
}

/// An id for an incarnation: random, and never 0.
fn fresh_id() -> InstanceId {
    InstanceId(rand::random_range(1..=u64::MAX))
}
