//! Puts a frontend together: what it listens on and how it ends come in as arguments.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::FILE_DESCRIPTOR_SET;
use armature_contracts::ids::InstanceId;
use armature_contracts::inference::v1::inference_service_server::InferenceServiceServer;
use armature_svc_kit::address::Address;
use armature_svc_kit::admin::{Admin, Ready};
use armature_svc_kit::channel::{ChannelOptions, Channels, TokenError};
use armature_svc_kit::discovery_client::{
    Component, Discovery, Instance, NoEndpoint, Registration, RegistrationOptions, Status, WatchOptions,
    health_probe,
};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::http_server::{self, HttpOptions};
use armature_svc_kit::limited;
use armature_svc_kit::network::{BindError, Listener, Network};
use armature_svc_kit::reachable::advertised;
use armature_svc_kit::server::{ReflectionError, Server, ServerMetrics, ServerOptions};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::adapters::artifacts::DiscoveryArtifacts;
use crate::adapters::choice_ends::{ChoiceEndSender, choice_ends};
use crate::adapters::membership;
use crate::adapters::releases::{ReleaseSender, releases};
use crate::adapters::routers::GrpcRouters;
use crate::adapters::system::{SystemCalendar, SystemEntropy};
use crate::adapters::workers::GrpcWorkers;
use crate::config::{Config, Invalid};
use crate::domain::member::Members;
use crate::gateway::service::EndpointPicker;
use crate::gateway::wire::external_processor_server::ExternalProcessorServer;
use crate::grpc::service::Inference;
use crate::http::server::HttpApi;
use crate::metrics::Metrics;
use crate::models::catalogue::Catalogue;
use crate::models::loader::Loader;
use crate::session::pipeline::{Outside, Pipeline};

/// Time for the head of a request, and of an idle connection until the next one: longer than what clients keep one for in their pools.
const HTTP_HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// What a process gives to each of its services.
pub struct Parts {
    /// Where to listen and connect.
    pub network: Network,
    /// Instruments are registered here; the admin server shows it.
    pub registry: Registry,
    /// How the service ends.
    pub drain: Drain,
}

/// Why a frontend could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] Invalid),
    /// The service token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
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

/// Why a running frontend ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The descriptors for reflection are broken.
    #[error(transparent)]
    Reflection(#[from] ReflectionError),
    /// A part of it panicked.
    #[error("the frontend stopped")]
    Stopped(#[from] tokio::task::JoinError),
}

/// A frontend that listens. Dropping it stops it at once.
pub struct Running {
    /// Bound address of the HTTP API.
    pub http: String,
    /// Bound address of the gRPC API.
    pub grpc: String,
    /// Bound address of the admin server.
    pub admin: Option<String>,
    /// Bound address of the Endpoint Picker.
    pub gateway: Option<String>,
    /// Becomes true once a model can be routed, as /readyz says.
    pub ready: Ready,
    task: AbortOnDropHandle<Result<(), RunError>>,
}

impl Running {
    /// Resolves when the frontend has drained.
    pub async fn finished(self) -> Result<(), RunError> {
        self.task.await?
    }
}

/// Starts a frontend: returns once it listens.
pub async fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let Parts { network, mut registry, drain } = parts;
    let settings = config.validate()?;
    let http = network.bind(&config.http).await?;
    let grpc = network.bind(&config.grpc).await?;
    let admin = match &config.admin {
        Some(address) => Some(network.bind(address).await?),
        None => None,
    };
    let gateway = match &config.gateway.listen {
        Some(address) => Some(network.bind(address).await?),
        None => None,
    };
    let options = ChannelOptions { token: config.token.clone(), ..ChannelOptions::default() };
    let channels = Channels::new(network, options)?;
    let discovery = Discovery::new(channels.clone(), config.discovery.clone())?.beginning_at(rand::random());

    let prefixed = registry.sub_registry_with_prefix("armature_frontend");
    let metrics = Metrics::new(prefixed);
    let server_metrics = ServerMetrics::new(prefixed);
    let (members, viewed) = watch::channel(Arc::default());
    let (release, release_sender) = releases(channels.clone(), metrics.releases_dropped.clone());
    let (choice_ends, choice_end_sender) = choice_ends(channels.clone(), metrics.choice_ends_dropped.clone());
    let routers = GrpcRouters::new(
        channels.clone(),
        viewed.clone(),
        release,
        metrics.router_failovers.clone(),
        settings.first_token,
    );
    let (loader, catalogue) = Loader::new(Arc::new(DiscoveryArtifacts(discovery.clone())), viewed.clone());
    let outside = Outside {
        routing: Arc::new(routers.clone()),
        workers: Arc::new(GrpcWorkers::new(channels.clone(), choice_ends)),
        catalogue,
        calendar: Arc::new(SystemCalendar),
        entropy: Arc::new(SystemEntropy),
        drain: drain.clone(),
    };
    let pipeline = Arc::new(Pipeline::new(outside, settings, metrics));

    let address = advertised(grpc.address(), config.advertise.as_ref(), &config.discovery).await;
    let picker = EndpointPicker {
        pipeline: pipeline.clone(),
        members: viewed,
        frontend: advertised(http.address(), config.gateway.frontend.as_ref(), &config.discovery)
            .await
            .to_string()
            .into(),
        max_body: config.max_body_bytes,
    };
    let bound = |listener: &Listener| listener.address().to_string();
    let (http_bound, grpc_bound, admin_bound) = (bound(&http), bound(&grpc), admin.as_ref().map(bound));
    let gateway_bound = gateway.as_ref().map(bound);
    let ready = Ready::new();
    let assembled = Assembled {
        config,
        pipeline,
        discovery,
        channels,
        drain,
        address,
        server_metrics,
        registry,
        ready: ready.clone(),
        routers,
        release_sender,
        choice_end_sender,
        loader,
        members,
        picker,
    };
    let task = AbortOnDropHandle::new(tokio::spawn(Box::pin(assembled.run(http, grpc, admin, gateway))));
    Ok(Running {
        http: http_bound,
        grpc: grpc_bound,
        admin: admin_bound,
        gateway: gateway_bound,
        ready,
        task,
    })
}

struct Assembled {
    config: Config,
    pipeline: Arc<Pipeline>,
    discovery: Discovery,
    channels: Channels,
    drain: Drain,
    address: Address,
    server_metrics: ServerMetrics,
    registry: Registry,
    ready: Ready,
    routers: GrpcRouters,
    release_sender: ReleaseSender,
    choice_end_sender: ChoiceEndSender,
    loader: Loader,
    members: watch::Sender<Arc<Members>>,
    picker: EndpointPicker,
}

impl Assembled {
    async fn run(
        self,
        http: Listener,
        grpc: Listener,
        admin: Option<Listener>,
        gateway: Option<Listener>,
    ) -> Result<(), RunError> {
        let Self { config, pipeline, discovery, drain, mut registry, .. } = self;
        let (watcher, members) = discovery.watch(WatchOptions {
            namespace: config.namespace.clone(),
            components: vec![Component::Worker, Component::Router],
            last_good: config.view_file.clone(),
            probe: health_probe(self.channels.clone()),
        });
        let prefixed = registry.sub_registry_with_prefix("armature_frontend");
        members.register_metrics(prefixed);
        self.channels.register_metrics(prefixed);
        let (registrar, registration) = discovery.register(RegistrationOptions {
            instance: Instance::starting(fresh_id(), &config.namespace, Component::Frontend, &self.address),
            model: None,
            fenced: Box::new(|_| fresh_id()),
        });
        let api = HttpApi {
            pipeline: pipeline.clone(),
            max_body: config.max_body_bytes,
            started: pipeline.unix_time(),
            follow_pins: config.gateway.follow_pins || gateway.is_some(),
        };
        let connections = pipeline.metrics.http_connections.clone();
        let http_options =
            HttpOptions { max_connections: config.max_connections, head_timeout: HTTP_HEAD_TIMEOUT };
        let options = ServerOptions {
            max_connections: config.max_connections,
            // Room beyond the generations, so that their limit is what refuses, in the caller's words.
            max_in_flight: config.max_in_flight.saturating_mul(2),
            token: None,
            ..ServerOptions::default()
        };
        let picker_options = options.clone();
        let picker_metrics = self.server_metrics.clone();
        let picker = async {
            let Some(listener) = gateway else { return Ok(()) };
            let picker = limited!(ExternalProcessorServer::new(self.picker));
            Server::new(picker_options, picker_metrics).service(picker).serve(listener, drain.clone()).await
        };
        let server = Server::new(options, self.server_metrics)
            .service(limited!(InferenceServiceServer::new(Inference::new(pipeline.clone()))))
            .descriptors(FILE_DESCRIPTOR_SET);
        let admin = async {
            let Some(listener) = admin else { return };
            let registry = Arc::new(registry);
            let version = env!("CARGO_PKG_VERSION");
            let admin = Admin { service: "frontend", version, ready: self.ready.clone(), registry };
            admin.serve(listener, drain.clone()).await;
        };
        let first_model = first_model(pipeline.catalogue_changes(), &self.ready, &registration);
        let (served, picked, ..) = tokio::join!(
            server.serve(grpc, drain.clone()),
            picker,
            http_server::serve(http, api.routes(), drain.clone(), http_options, connections),
            admin,
            watcher.run(drain.clone()),
            registrar.run(drain.clone()),
            until(drain.stopping(), membership::follow(members.subscribe(), self.members)),
            until(drain.stopping(), self.loader.run()),
            until(drain.stopping(), self.routers.probe()),
            until(drain.stopping(), self.release_sender.run()),
            until(drain.stopping(), self.choice_end_sender.run()),
            until(drain.draining(), first_model),
            shut_down(&drain, &registration, Duration::from_secs(config.drain_seconds)),
        );
        Ok(served.and(picked)?)
    }
}

/// Ready from the first moment at which a model can be routed; what happens later is for the models' own errors to say.
async fn first_model(
    mut catalogues: watch::Receiver<Arc<Catalogue>>,
    ready: &Ready,
    registration: &Registration,
) {
    if catalogues.wait_for(|catalogue| catalogue.routable()).await.is_ok() {
        ready.set(true);
        registration.request_status(Status::Ready);
    }
}

async fn shut_down(drain: &Drain, registration: &Registration, limit: Duration) {
    drain.run(limit, registration.set_status(Status::Draining), registration.deregister()).await;
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
