//! A gRPC server with everything a service's server has: the layers, health, reflection, HTTP/2
//! keep-alive, a bound on connections and an orderly end.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use armature_contracts::ids::InstanceId;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tower::{Service, ServiceBuilder, ServiceExt as _};

use crate::channel::{CONNECTION_WINDOW_BYTES, KeepAlive, STREAM_WINDOW_BYTES};
use crate::drain::Drain;
use crate::layers::context::ContextLayer;
use crate::layers::deadline::DeadlineLayer;
use crate::layers::panics::PanicLayer;
use crate::layers::shed::ShedLayer;
use crate::layers::token::TokenLayer;
use crate::layers::{Answer, Inner};
use crate::network::{Connection, Listener, Peer};
use crate::preface::Prefaced;
use crate::secret::Secret;

/// Streams a client may reset before the server has looked at them. The default of 20 takes a
/// burst of cancelled calls for an attack and closes the connection under everybody else.
const PENDING_RESETS: usize = 4096;
/// Frames for streams that have ended here, in the life of a connection, before it is taken for an
/// attack. The default of 1024 is reached by honest clients that are refused while they send.
const LATE_FRAMES: usize = 1 << 20;
/// Streams of a connection beyond the calls admitted: room to be refused with a status.
const REFUSABLE_STREAMS: u32 = 1024;

/// Health name that says that instances can be asked for by id.
pub(crate) const INSTANCE: &str = "instance";

/// Health name of one incarnation.
pub(crate) fn instance_name(id: InstanceId) -> String {
    format!("{INSTANCE}/{id}")
}

/// Limits and identity of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Calls in flight before others are refused; a stream counts until it ends.
    pub max_in_flight: usize,
    /// Connections served at a time; others wait to be accepted.
    pub max_connections: usize,
    /// When a hanging client is given up.
    pub keep_alive: KeepAlive,
    /// Token that callers must send.
    pub token: Option<Secret>,
    /// How long open streams may go on after the listener has stopped.
    pub stop_grace: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_in_flight: 8192,
            max_connections: 4096,
            keep_alive: KeepAlive::PATIENT,
            token: None,
            stop_grace: Duration::from_secs(2),
        }
    }
}

/// The instruments of a server: `grpc_*` in the registry it is made from.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    in_flight: Gauge,
    max_in_flight: Gauge,
    connections: Gauge,
    shed: Counter,
    panics: Counter,
    unauthenticated: Counter,
    deadline_exceeded: Counter,
}

impl ServerMetrics {
    /// Registers the instruments; `registry` carries the service's prefix.
    pub fn new(registry: &mut Registry) -> Self {
        let it = Self::default();
        registry.register("grpc_in_flight", "Calls in flight", it.in_flight.clone());
        registry.register("grpc_max_in_flight", "Limit of calls in flight", it.max_in_flight.clone());
        registry.register("grpc_connections", "Open connections", it.connections.clone());
        registry.register("grpc_shed", "Calls refused at the limit of calls in flight", it.shed.clone());
        registry.register("grpc_panics", "Calls ended by a panic", it.panics.clone());
        registry.register(
            "grpc_unauthenticated",
            "Calls without the service token",
            it.unauthenticated.clone(),
        );
        registry.register(
            "grpc_deadline_exceeded",
            "Calls cut off at their deadline",
            it.deadline_exceeded.clone(),
        );
        it
    }

    /// Calls ended by a panic so far.
    pub fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Calls in flight now.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }
}

const HEALTH: &str = tonic_health::pb::health_server::SERVICE_NAME;
const REFLECTION: &str = tonic_reflection::pb::v1::server_reflection_server::SERVICE_NAME;

/// The descriptors given for reflection are not valid.
#[derive(Debug, thiserror::Error)]
#[error("the file descriptor set cannot be served by reflection")]
pub struct ReflectionError(#[source] tonic_reflection::server::Error);

/// A gRPC server being put together; [`Server::serve`] runs it.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    metrics: ServerMetrics,
    routes: RoutesBuilder,
    descriptors: Vec<&'static [u8]>,
    health: HealthReporter,
    names: Vec<&'static str>,
    instance: Option<watch::Receiver<InstanceId>>,
}

impl Server {
    /// A server with health and reflection and nothing else yet.
    pub fn new(options: ServerOptions, metrics: ServerMetrics) -> Self {
        let health = HealthReporter::new();
        let mut routes = Routes::builder();
        routes.add_service(HealthServer::new(HealthService::from_health_reporter(health.clone())));
        metrics.max_in_flight.set(i64::try_from(options.max_in_flight).unwrap_or(i64::MAX));
        Self { options, metrics, routes, descriptors: Vec::new(), health, names: Vec::new(), instance: None }
    }

    /// Adds a generated server. Wrap it in [`crate::limited!`] first.
    #[must_use]
    pub fn service<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes.add_service(service);
        self
    }

    /// Lets probes tell the present incarnation from another one at the same address: the health of `instance` and of `instance/<id>` can
    /// be asked for.
    #[must_use]
    pub fn instance(mut self, present: watch::Receiver<InstanceId>) -> Self {
        self.instance = Some(present);
        self
    }

    /// Adds an encoded file descriptor set to what reflection shows.
    #[must_use]
    pub fn descriptors(mut self, encoded: &'static [u8]) -> Self {
        self.descriptors.push(encoded);
        self
    }

    /// The reporter behind grpc.health.v1. Every service is SERVING from the start and NOT_SERVING
    /// once the drain refuses new work; a service that knows better says so here.
    pub fn health(&self) -> HealthReporter {
        self.health.clone()
    }

    /// Serves until `drain` says stop and open streams have ended or `stop_grace` is over.
    /// Dropping the future cuts every connection at once.
    pub async fn serve(mut self, listener: Listener, drain: Drain) -> Result<(), ReflectionError> {
        if !self.descriptors.is_empty() {
            self.add_reflection()?;
        }
        for name in &self.names {
            self.health.set_service_status(name, ServingStatus::Serving).await;
        }
        let Self { options, metrics, routes, health, names, instance, .. } = self;
        let service = ServiceBuilder::new()
            .layer(ContextLayer)
            .layer(PanicLayer::new(metrics.panics.clone()))
            .layer(TokenLayer::new(options.token.clone(), metrics.unauthenticated.clone()))
            .layer(ShedLayer::new(options.max_in_flight, metrics.in_flight.clone(), metrics.shed.clone()))
            .layer(DeadlineLayer::new(metrics.deadline_exceeded.clone()))
            .service(routes.routes().prepare());

        let tasks = Tasks::default();
        let _cut = tasks.cut.clone().drop_guard();
        tokio::join!(
            report_instance(&drain, &health, instance),
            report_draining(&drain, &health, &names),
            accept(listener, &drain, &options, &metrics, &tasks, service),
        );
        tasks.tracker.close();
        if tokio::time::timeout(options.stop_grace, tasks.tracker.wait()).await.is_err() {
            tracing::info!(streams = tasks.tracker.len(), "cutting streams that did not end in time");
        }
        Ok(())
    }

    fn add_reflection(&mut self) -> Result<(), ReflectionError> {
        let builder = || {
            // The descriptors name the services of every process; listed are those of this one.
            let listed = [HEALTH, REFLECTION].iter().chain(&self.names);
            let builder = listed.fold(tonic_reflection::server::Builder::configure(), |builder, name| {
                builder.with_service_name(*name)
            });
            let builder = builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            self.descriptors
                .iter()
                .fold(builder, |builder, set| builder.register_encoded_file_descriptor_set(set))
        };
        let (v1, v1alpha) = (builder().build_v1(), builder().build_v1alpha());
        self.routes.add_service(v1.map_err(ReflectionError)?);
        self.routes.add_service(v1alpha.map_err(ReflectionError)?);
        Ok(())
    }
}

async fn report_draining(drain: &Drain, health: &HealthReporter, names: &[&'static str]) {
    drain.refusing().await;
    for name in names.iter().chain([&""]) {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
}

/// Answers for the present incarnation, and no longer for those before it.
async fn report_instance(
    drain: &Drain,
    health: &HealthReporter,
    instance: Option<watch::Receiver<InstanceId>>,
) {
    let Some(mut instance) = instance else { return };
    health.set_service_status(INSTANCE, ServingStatus::Serving).await;
    loop {
        let present = instance_name(*instance.borrow_and_update());
        health.set_service_status(&present, ServingStatus::Serving).await;
        tokio::select! {
            Ok(()) = instance.changed() => health.clone().clear_service_status(&present).await,
            () = drain.stopping() => return,
        }
    }
}

async fn accept<S>(
    listener: Listener,
    drain: &Drain,
    options: &ServerOptions,
    metrics: &ServerMetrics,
    tasks: &Tasks,
    service: S,
) where
    S: Inner + Service<Request<Body>, Future = Answer>,
{
    let mut listener = listener.limit(options.max_connections);
    let streams = u32::try_from(options.max_in_flight).unwrap_or(u32::MAX).saturating_add(REFUSABLE_STREAMS);
    let mut http = http2::Builder::new(tasks.clone());
    http.timer(TokioTimer::new())
        .keep_alive_interval(options.keep_alive.interval)
        .keep_alive_timeout(options.keep_alive.timeout)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(streams)
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(LATE_FRAMES);
    loop {
        let connection = tokio::select! {
            connection = listener.accept() => connection,
            () = drain.stopping() => return,
        };
        // Pings begin when the client has said something: until then it has as long as for the answer to one.
        let patience = options.keep_alive.interval + options.keep_alive.timeout;
        let served = serve_connection(http.clone(), connection, patience, drain.clone(), service.clone());
        let open = metrics.connections.clone();
        tasks.spawn(async move {
            open.inc();
            served.await;
            open.dec();
        });
    }
}

async fn serve_connection<S>(
    http: http2::Builder<Tasks>,
    connection: Connection,
    patience: Duration,
    drain: Drain,
    service: S,
) where
    S: Inner + Service<Request<Body>, Future = Answer>,
{
    let peer = Peer(connection.peer().clone());
    let service = service.map_request(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        request
    });
    let connection = TokioIo::new(Prefaced::new(connection, patience));
    let served = http.serve_connection(connection, TowerToHyperService::new(service));
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = drain.stopping() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// The tasks of a server: counted, and cut together.
#[derive(Clone, Debug, Default)]
struct Tasks {
    tracker: TaskTracker,
    cut: CancellationToken,
}

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let cut = self.cut.clone();
        self.tracker.spawn(async move { cut.run_until_cancelled(task).await });
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.spawn(stream);
    }
}
