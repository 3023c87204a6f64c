//! The suite as its users first meet it: `armature up`, every service in one process.

use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::{ListWorkersRequest, WorkerView};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::client::Client;
use crate::process::Process;
use crate::wait_until;

/// One process with discovery, router, frontend and workers.
#[derive(Debug)]
pub struct Suite {
    /// The process.
    pub process: Process,
    /// The OpenAI API.
    pub client: Client,
    /// `host:port` of the gRPC API.
    pub grpc: String,
    admin: Client,
    router: RouterServiceClient<Channel>,
    // Last: the process reads its log when it is dropped.
    _dir: TempDir,
}

impl Suite {
    /// Starts `armature up` with `args` on free ports and waits until it says where it is.
    pub async fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let addresses =
            ["--http", "--grpc", "--router", "--admin"].iter().flat_map(|flag| [*flag, "127.0.0.1:0"]);
        let args: Vec<String> =
            ["up"].into_iter().chain(args.iter().copied()).chain(addresses).map(str::to_owned).collect();
        let mut process = Process::start(dir.path(), "up", "armature", &args);
        wait_until("the suite says where it is", async || {
            assert!(process.runs(), "armature up ended while starting");
            said(&process.log(), "admin").is_some()
        })
        .await;
        let log = process.log();
        let address =
            |name| said(&log, name).expect("every address is said").trim_start_matches("http://").to_owned();
        let router = format!("http://{}", address("router"));
        Self {
            client: Client::new(&format!("http://{}", address("OpenAI HTTP").trim_end_matches("/v1"))),
            grpc: address("gRPC"),
            admin: Client::new(&format!("http://{}", address("admin"))),
            router: RouterServiceClient::connect(router).await.expect("the router takes connections"),
            process,
            _dir: dir,
        }
    }

    /// The simulated engine, ten times faster than what it simulates.
    pub async fn sim() -> Self {
        Self::start(&["--engine", "sim", "--speedup", "10"]).await
    }

    /// The workers as the router sees them.
    pub async fn workers(&self) -> Vec<WorkerView> {
        let asked = ListWorkersRequest { namespace: "default".into() };
        self.router.clone().list_workers(asked).await.expect("the router answers").into_inner().workers
    }

    /// A number of the frontend's metrics page.
    ///
    /// # Panics
    /// When it has none of this name without labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.admin.get_text("/metrics").await;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("{name} is not in\n{page}"))
    }

    /// Waits until nothing runs, waits, is held or is owed anywhere: in the frontend, in the router's books, on any worker.
    pub async fn idle(&self) {
        wait_until("nothing is in flight", async || {
            self.metric("armature_frontend_in_flight").await == 0.0
                && self.metric("armature_frontend_grpc_in_flight").await == 0.0
        })
        .await;
        let mut busy = Vec::new();
        let quiet = wait_until("no worker holds anything", async || {
            busy = self.workers().await;
            busy.retain(|it| it.running + it.waiting + it.unsettled_reservations + it.blocks_active > 0);
            busy.is_empty()
        });
        quiet.await;
        for worker in self.workers().await {
            let accounted = worker.blocks_cached + worker.blocks_free;
            assert_eq!(accounted, worker.blocks_total, "every block is cached or free: {worker:?}");
        }
    }
}

/// What a line of the greeting says behind its name, up to the next space.
fn said<'a>(log: &'a str, name: &str) -> Option<&'a str> {
    log.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.split_whitespace().next())
}
