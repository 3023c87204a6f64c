//! Puts the service together: everything it needs comes in, everything it starts is awaited.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use armature_contracts::FILE_DESCRIPTOR_SET;
use armature_contracts::discovery::v1::discovery_service_server::DiscoveryServiceServer;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::config::ConfigError;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::limited;
use armature_svc_kit::network::{BindError, Network};
use armature_svc_kit::server::{ReflectionError, Server};
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

use crate::adapters::consul::Consul;
use crate::adapters::consul::metrics::ConsulMetrics;
use crate::adapters::consul::settings::ConsulSettings;
use crate::adapters::file::{InstanceFile, LoadError};
use crate::adapters::memory::Memory;
use crate::config::{BackendSettings, Config, Settings};
use crate::domain::instance::ReplicaId;
use crate::domain::view::{Revision, ViewEpoch};
use crate::grpc::service::Discovery;
use crate::metrics::Metrics;
use crate::ports::Backend;
use crate::replica::{Identity, Replica};

/// What the service is given.
#[derive(Debug)]
pub struct Parts {
    /// Where it listens.
    pub network: Network,
    /// Where its instruments go, and what its admin page shows.
    pub registry: Registry,
    /// When it ends.
    pub drain: Drain,
}

/// Why the service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The instance file is wrong.
    #[error("cannot load {}: {error}", path.display())]
    File {
        /// Of the file backend.
        path: PathBuf,
        /// Where and why.
        error: LoadError,
    },
    /// Somebody else listens there.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl From<StartError> for Failed {
    fn from(error: StartError) -> Self {
        match error {
            // Whoever has it may be gone at the next try.
            StartError::Bind(_) => Self::running(error),
            StartError::Config(_) | StartError::File { .. } => Self::configuration(error),
        }
    }
}

/// Why the service ended other than by its drain.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The gRPC server could not serve.
    #[error(transparent)]
    Server(#[from] ReflectionError),
    /// A task died.
    #[error("a task of the service died")]
    Task(#[from] tokio::task::JoinError),
}

/// The service at work. Dropping it cuts everything at once.
#[derive(Debug)]
pub struct Running {
    /// Bound gRPC address.
    pub grpc: String,
    /// Bound admin address.
    pub admin: Option<String>,
    tasks: JoinSet<Result<(), RunError>>,
}

impl Running {
    /// Waits until the service has drained.
    pub async fn finished(mut self) -> Result<(), RunError> {
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Starts the service on the backend that its configuration names; returns once it listens. It ends after `parts.drain` has begun.
pub async fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let settings = config.validate()?;
    let base = since_1970().as_millis() as u64;
    let memory = Memory::new(settings.limits, base, settings.changes);
    match settings.backend.clone() {
        BackendSettings::Memory => Ok(assemble(settings, parts, Arc::new(memory)).await?.0),
        BackendSettings::File { path, reload } => {
            let file = InstanceFile::load(path.clone(), memory.clone()).await;
            let file = file.map_err(|error| StartError::File { path, error })?;
            let drain = parts.drain.clone();
            let (mut running, metrics) = assemble(settings, parts, Arc::new(memory)).await?;
            running.tasks.spawn(async move {
                file.follow(reload, metrics.file_errors, drain).await;
                Ok(())
            });
            Ok(running)
        }
        BackendSettings::Consul(consul) => on_consul(settings, *consul, base, parts).await,
    }
}

async fn on_consul(
    settings: Settings,
    consul: ConsulSettings,
    base: u64,
    mut parts: Parts,
) -> Result<Running, StartError> {
    let metrics = ConsulMetrics::new(parts.registry.sub_registry_with_prefix("armature_discovery"));
    let consul = Consul::new(&consul, settings.limits, base, settings.changes, metrics)
        .map_err(|error| ConfigError::invalid(error.key(), error.to_string()))?;
    let drain = parts.drain.clone();
    let (mut running, _) = assemble(settings, parts, Arc::new(consul.clone())).await?;
    running.tasks.spawn(async move {
        consul.run(drain).await;
        Ok(())
    });
    Ok(running)
}

/// Starts the service as one replica of `backend`, whatever backend its configuration names.
pub async fn start_on(
    config: Config,
    parts: Parts,
    backend: Arc<dyn Backend>,
) -> Result<Running, StartError> {
    assemble(config.validate()?, parts, backend).await.map(|(running, _)| running)
}

async fn assemble(
    settings: Settings,
    parts: Parts,
    backend: Arc<dyn Backend>,
) -> Result<(Running, Metrics), StartError> {
    let Parts { network, mut registry, drain } = parts;
    let metrics = Metrics::new(&mut registry, &settings);
    let listener = network.bind(&settings.listen).await?;
    let admin = match &settings.admin {
        Some(address) => Some(network.bind(address).await?),
        None => None,
    };
    let mut tasks = JoinSet::new();
    let running = (listener.address().to_string(), admin.as_ref().map(|it| it.address().to_string()));

    let ready = Ready::explained({
        let backend = backend.clone();
        move || backend.trouble()
    });
    let replica = Arc::new(Replica::new(identity(), settings.rules, backend, metrics.clone()));
    tasks.spawn({
        let (replica, drain, ready) = (replica.clone(), drain.clone(), ready.clone());
        async move {
            replica.run(drain, || ready.set(true)).await;
            Ok(())
        }
    });
    if let Some(listener) = admin {
        let version = env!("CARGO_PKG_VERSION");
        let admin = Admin { service: "discovery", version, ready, registry: Arc::new(registry) };
        let drain = drain.clone();
        tasks.spawn(async move {
            admin.serve(listener, drain).await;
            Ok(())
        });
    }
    let Settings { rules, heartbeat, watchers, .. } = settings;
    let discovery = Discovery::new(replica, rules.ttl, heartbeat, watchers, drain.clone());
    let server = Server::new(settings.server, metrics.server.clone())
        .service(limited!(DiscoveryServiceServer::new(discovery)))
        .descriptors(FILE_DESCRIPTOR_SET);
    let stop = drain.clone();
    tasks.spawn(async move { Ok(server.serve(listener, stop).await?) });
    tasks.spawn(async move {
        // Nobody is told: clients see the connection end and go to another replica.
        drain.run(settings.drain, std::future::ready(()), std::future::ready(())).await;
        Ok(())
    });
    let (grpc, admin) = running;
    tracing::info!(%grpc, admin, "discovery is listening");
    Ok((Running { grpc, admin, tasks }, metrics))
}

/// Random, except for the first revision: the wall clock in microseconds, so that revisions grow over restarts as long as there is less
/// than one change a microsecond.
fn identity() -> Identity {
    Identity {
        replica: ReplicaId(rand::random()),
        epoch: ViewEpoch(rand::random_range(1..=u64::MAX)),
        first_revision: Revision(since_1970().as_micros() as u64),
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
