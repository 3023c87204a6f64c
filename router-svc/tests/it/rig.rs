//! A router, its discovery and its workers, in one process.

use std::time::Duration;

use armature_contracts::discovery::v1::discovery_service_server::DiscoveryServiceServer;
use armature_contracts::discovery::v1::{
    Component, Instance, InstanceStatus, Limits, ModelCard, Role, StepPrior,
};
use armature_contracts::error::Fault;
use armature_contracts::ids::{ReservationKey, WorkerRank};
use armature_contracts::inference::v1::{Budget, RequestContext};
use armature_contracts::kv::v1::{BlockHashes, KvLayout};
use armature_contracts::kv_hash::HASH_SCHEME;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::*;
use armature_contracts::worker::v1::worker_service_server::WorkerServiceServer;
use armature_router::app::{self, Parts, Running};
use armature_router::config::Config;
use armature_router::domain::policy::PolicyKind;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{AbortHandle, JoinSet};

use crate::fake_discovery::FakeDiscovery;
use crate::fake_worker::{BLOCK_SIZE, FakeWorker};

/// Everything a test needs; all of it ends when this is dropped.
pub struct Rig {
    pub discovery: FakeDiscovery,
    pub network: Network,
    servers: JoinSet<()>,
}

/// A running router and its client.
pub struct RouterUnderTest {
    pub running: Running,
    pub drain: Drain,
    pub client: RouterServiceClient<Channel>,
    pub id: u64,
    network: Network,
    admin: Address,
}

pub fn key(n: u128) -> ReservationKey {
    ReservationKey { id: n, attempt: 1 }
}

/// `n` blocks of chain `c`.
pub fn chain(c: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| c * 1_000_000 + i).collect()
}

pub fn card(role: Role) -> ModelCard {
    ModelCard {
        served_name: "model".into(),
        model_digest: vec![1; 32].into(),
        tokenizer_digest: vec![2; 32].into(),
        template_digest: vec![3; 32].into(),
        context_length: 100_000,
        block_size: BLOCK_SIZE,
        kv_blocks: 10_000,
        roles: vec![role.into()],
        engine: "fake".into(),
        hash_scheme: HASH_SCHEME.into(),
        limits: Some(Limits { max_running: 256, max_waiting: 256, ..Default::default() }),
        layout: Some(KvLayout { compat_key: vec![9; 32].into(), ..Default::default() }),
        // One millisecond per uncached token; a decode step takes 1 + l milliseconds.
        step_prior: Some(StepPrior {
            prefill_a1: 1.0,
            decode_d1: 1.0,
            decode_d0: 1.0,
            transfer_ms_per_token: 0.01,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A request for `tokens` tokens with these blocks.
pub fn request(n: u128, tokens: u32, blocks: Vec<u64>) -> RouteRequest {
    let context = RequestContext { reservation: Some(key(n).into()), ..Default::default() };
    RouteRequest {
        context: Some(context),
        model_digest: vec![1; 32].into(),
        tokenizer_digest: vec![2; 32].into(),
        template_digest: vec![3; 32].into(),
        prompt_tokens: tokens,
        prompt: Some(BlockHashes {
            hash_scheme: HASH_SCHEME.into(),
            block_size: BLOCK_SIZE,
            sequence_hashes: blocks,
        }),
        ..Default::default()
    }
}

pub fn with(mut request: RouteRequest, constraints: Constraints) -> RouteRequest {
    request.constraints = Some(constraints);
    request
}

/// It may wait for so many milliseconds.
pub fn patient(mut request: RouteRequest, millis: u64) -> RouteRequest {
    let max_queue = Duration::from_millis(millis).try_into().ok();
    request.context.as_mut().unwrap().budget = Some(Budget { max_queue, attempts_left: 0 });
    request
}

pub fn decode_of(answer: &RouteResponse) -> u64 {
    answer.decode.as_ref().unwrap().worker.as_ref().unwrap().instance_id
}

pub fn prefill_of(answer: &RouteResponse) -> Vec<u64> {
    answer.prefill.iter().map(|target| target.worker.as_ref().unwrap().instance_id).collect()
}

impl Rig {
    pub async fn new() -> Self {
        let discovery = FakeDiscovery::new();
        let mut rig = Self { discovery: discovery.clone(), network: Network::new(), servers: JoinSet::new() };
        let server = Server::new(ServerOptions::default(), ServerMetrics::default())
            .service(DiscoveryServiceServer::new(discovery));
        rig.serve("discovery", server).await;
        rig
    }

    async fn serve(&mut self, name: &str, server: Server) -> AbortHandle {
        let listener = self.network.bind(&Address::mem(name)).await.unwrap();
        self.servers.spawn(async move { server.serve(listener, Drain::new()).await.unwrap() })
    }

    /// Starts and registers a worker of this role.
    pub async fn worker(&mut self, worker: FakeWorker, role: Role) -> FakeWorker {
        self.worker_with(worker, card(role)).await.0
    }

    /// Starts and registers a worker with this card; the handle kills its server.
    pub async fn worker_with(&mut self, worker: FakeWorker, card: ModelCard) -> (FakeWorker, AbortHandle) {
        let name = format!("worker-{}", worker.id());
        let server = Server::new(ServerOptions::default(), ServerMetrics::default())
            .service(WorkerServiceServer::new(worker.clone()));
        let handle = self.serve(&name, server).await;
        let digest = self.discovery.put_card_bytes(card.encode_to_vec());
        self.discovery.put(Instance {
            instance_id: worker.id(),
            namespace: "default".into(),
            component: Component::Worker.into(),
            addresses: [("grpc".to_owned(), format!("mem:{name}"))].into(),
            card_digest: digest.into(),
            status: InstanceStatus::Ready.into(),
            lease_epoch: 1,
            labels: [("zone".to_owned(), format!("z{}", worker.id()))].into(),
            ..Default::default()
        });
        (worker, handle)
    }

    /// Starts a router and waits until it is READY.
    pub async fn router(&self) -> RouterUnderTest {
        self.router_with(|_| {}).await
    }

    pub async fn router_with(&self, change: impl FnOnce(&mut Config)) -> RouterUnderTest {
        let router = self.starting(change).await;
        self.discovery.reached(router.id, InstanceStatus::Ready).await;
        router
    }

    /// Starts a router.
    pub async fn starting(&self, change: impl FnOnce(&mut Config)) -> RouterUnderTest {
        let mut config = Config {
            listen: Address::mem("router"),
            discovery: vec![Address::mem("discovery")],
            ..Config::default()
        };
        change(&mut config);
        // As each router has an address of its own.
        let admin = Address::mem(format!("{}-admin", config.listen));
        config.admin = Some(admin.clone());
        let address = config.listen.clone();
        let drain = Drain::new();
        let parts =
            Parts { network: self.network.clone(), registry: Registry::default(), drain: drain.clone() };
        let running = app::start(config, parts).await.unwrap();
        let channels = Channels::new(self.network.clone(), ChannelOptions::default()).unwrap();
        let client = RouterServiceClient::new(channels.to(&address));
        let id = running.instance.0;
        RouterUnderTest { running, drain, client, id, network: self.network.clone(), admin }
    }
}

pub fn round_robin(config: &mut Config) {
    config.policy.name = PolicyKind::RoundRobin;
}

impl RouterUnderTest {
    pub async fn route(&mut self, request: RouteRequest) -> Result<RouteResponse, Fault> {
        let answer = self.client.route(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Fault::from_status(&status))
    }

    pub async fn release(&mut self, keys: impl IntoIterator<Item = ReservationKey>) {
        let reservations = keys.into_iter().map(Into::into).collect();
        self.client.release(ReleaseRequest { reservations }).await.unwrap();
    }

    pub async fn explain(&mut self, decision_id: &str) -> Result<ExplainResponse, Fault> {
        let answer =
            self.client.explain(ExplainRequest { decision_id: decision_id.into(), otherwise: None }).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Fault::from_status(&status))
    }

    pub async fn views(&mut self) -> Vec<WorkerView> {
        self.client.list_workers(ListWorkersRequest::default()).await.unwrap().into_inner().workers
    }

    /// Its page of metrics.
    pub async fn metrics(&self) -> String {
        let mut connection = self.network.connect(&self.admin).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut page = String::new();
        connection.read_to_string(&mut page).await.unwrap();
        page
    }

    /// Waits until so many calls wait for room.
    pub async fn waiting(&self, calls: u64) {
        let line = format!("armature_router_backlog_calls {calls}\n");
        while !self.metrics().await.contains(&line) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until the router sees a worker as described.
    pub async fn sees(&mut self, worker: WorkerRank, seen: impl Fn(&WorkerView) -> bool) {
        loop {
            let views = self.views().await;
            let of = |view: &&WorkerView| view.worker.as_ref().unwrap().instance_id == worker.instance.0;
            if views.iter().find(of).is_some_and(&seen) {
                return;
            }
            // State, not time: every look is a call, and the clock moves only while all wait.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until the index has exactly what the worker has.
    pub async fn knows(&mut self, worker: &FakeWorker) {
        let blocks = worker.blocks();
        self.sees(worker.rank, |view| view.index_known && view.indexed_blocks == blocks).await;
    }
}
