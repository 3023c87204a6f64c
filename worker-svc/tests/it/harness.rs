//! Real workers over an in-process network, and a client that speaks the wire.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;
use armature_contracts::inference::v1 as inference;
use armature_contracts::worker::v1 as wire;
use armature_kv_hash::{HASH_SCHEME, sequence_hashes};
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{Channel, ChannelOptions, Channels};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::network::Network;
use armature_svc_kit::telemetry::{Telemetry, TelemetryConfig};
use armature_worker::app::{Parts, Running, start};
use armature_worker::config::{Config, EngineKind, Transport};
use armature_worker::engine::llama::WeightStore;
use armature_worker::identity::{Identity, Role, root_key};
use tempfile::TempDir;
use tokio_stream::StreamExt;
use tonic::Status;
use wire::worker_service_client::WorkerServiceClient;

/// A few workers of one model in this process.
pub(crate) struct Fleet {
    pub(crate) network: Network,
    weights: Arc<WeightStore>,
    pub(crate) dir: TempDir,
    base: Config,
    count: usize,
}

/// One of them.
pub(crate) struct Node {
    pub(crate) identity: Identity,
    pub(crate) address: String,
    pub(crate) admin: Address,
    pub(crate) drain: Drain,
    pub(crate) running: Running,
    pub(crate) client: WorkerServiceClient<Channel>,
    network: Network,
}

/// What a stream gave.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Output {
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) logprobs: Vec<Vec<f32>>,
    pub(crate) finish: Vec<i32>,
    pub(crate) usage: inference::Usage,
    pub(crate) prefilled_by: Option<u64>,
}

impl Fleet {
    /// Workers on the simulated engine, with no time spent.
    pub(crate) fn sim() -> Self {
        let mut base = Config { engine: EngineKind::Sim, kv_blocks: 256, ..Config::default() };
        base.sim.speedup = 1e9;
        Self::of(base)
    }

    /// Workers on the real engine with a tiny random model.
    pub(crate) fn tiny() -> Self {
        let mut fleet = Self::of(Config { kv_blocks: 128, ..Config::default() });
        let path: PathBuf = fleet.dir.path().join("tiny.gguf");
        armature_tiny_gguf::write(&path, &armature_tiny_gguf::Spec::default()).unwrap();
        fleet.base.model = Some(path);
        fleet
    }

    /// Workers before engines of somebody else, whose URL is still to be said; their tokenizer is the tiny model's.
    pub(crate) fn external(engine: EngineKind) -> Self {
        let mut fleet = Self::of(Config { engine, ..Config::default() });
        let path = fleet.dir.path().join("tiny.gguf");
        armature_tiny_gguf::write(&path, &armature_tiny_gguf::Spec::default()).unwrap();
        fleet.base.openai.tokenizer = Some(path);
        fleet
    }

    /// What its workers have in common.
    pub(crate) fn config(&self) -> Config {
        let mut config = self.base.clone();
        config.listen = Address::mem("unused");
        config.admin = None;
        config
    }

    fn of(base: Config) -> Self {
        // RUST_LOG=debug shows what the workers do; the first test of the process sets it up.
        let quiet = TelemetryConfig { log_level: "off".into(), ..TelemetryConfig::default() };
        let _ = Telemetry::start(&quiet, "test");
        let dir = tempfile::tempdir().unwrap();
        let base = Config {
            discovery: vec![Address::mem("discovery")],
            kv_listen: Address::tcp("127.0.0.1", 0),
            shm_dir: dir.path().join("shm"),
            poison_blocks: true,
            ..base
        };
        Self { network: Network::new(), weights: Arc::default(), dir, base, count: 0 }
    }

    /// Starts a worker.
    pub(crate) async fn start(&mut self, role: Role, change: impl FnOnce(&mut Config)) -> Node {
        self.count += 1;
        let mut config = self.base.clone();
        config.role = role;
        config.listen = Address::mem(format!("worker-{}", self.count));
        config.admin = Some(Address::mem(format!("admin-{}", self.count)));
        change(&mut config);
        let drain = Drain::new();
        let parts = Parts {
            network: self.network.clone(),
            registry: Default::default(),
            weights: Arc::clone(&self.weights),
            drain: drain.clone(),
        };
        let running = start(config, parts).await.unwrap();
        let channels = Channels::new(self.network.clone(), ChannelOptions::default()).unwrap();
        Node {
            identity: running.identity.clone(),
            address: running.grpc.to_string(),
            admin: running.admin.clone().unwrap(),
            client: WorkerServiceClient::new(channels.to(&running.grpc)),
            network: self.network.clone(),
            drain,
            running,
        }
    }
}

/// A request for `node`: greedy, `max_tokens` tokens of each of `n` choices.
pub(crate) fn request(node: &Node, prompt: &[u32], max_tokens: u32, n: u32) -> wire::GenerateRequest {
    let identity = &node.identity;
    let root = identity.root(&[], "", "");
    let hashes = sequence_hashes(root_key(&root), identity.block_size(), prompt);
    let reservation =
        inference::ReservationKey { id: rand::random::<[u8; 16]>().to_vec().into(), attempt: 1 };
    wire::GenerateRequest {
        context: Some(inference::RequestContext {
            request_id: "test".into(),
            reservation: Some(reservation),
            model_digest: identity.spec.model_digest.to_vec().into(),
            ..Default::default()
        }),
        worker: Some(node.rank().into()),
        prompt_token_ids: prompt.to_vec(),
        blocks: Some(wire::BlockCheck {
            hash_scheme: HASH_SCHEME.into(),
            block_size: identity.block_size() as u32,
            first: hashes.first().copied(),
            last: hashes.last().copied(),
        }),
        sampling: Some(inference::SamplingParams {
            temperature: Some(0.0),
            seed: Some(7),
            logprobs: Some(0),
            ..Default::default()
        }),
        stop: Some(inference::StopConditions {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..Default::default()
        }),
        choices: (0..n).map(|index| wire::ChoiceStart { index, generated_token_ids: vec![] }).collect(),
        prefill: vec![],
        local_prefill_forbidden: false,
    }
}

/// Names `prefill` as the only place where the prompt may be computed.
pub(crate) fn disaggregate(request: &mut wire::GenerateRequest, prefill: &[&Node]) {
    request.prefill = prefill
        .iter()
        .map(|node| wire::PrefillTarget { worker: Some(node.rank().into()), address: node.address.clone() })
        .collect();
    request.local_prefill_forbidden = true;
}

impl Node {
    /// Its one rank, in the present incarnation.
    pub(crate) fn rank(&self) -> WorkerRank {
        WorkerRank::first(*self.running.instance.borrow())
    }

    /// Ways to it and to others of its fleet.
    pub(crate) fn channels(&self) -> Channels {
        Channels::new(self.network.clone(), ChannelOptions::default()).unwrap()
    }

    /// Runs a request to its end.
    pub(crate) async fn generate(&self, request: wire::GenerateRequest) -> Result<Output, Status> {
        let n = request.choices.iter().map(|choice| choice.index as usize + 1).max().unwrap_or(0);
        let mut generated: Vec<u32> = vec![0; n];
        for choice in &request.choices {
            generated[choice.index as usize] = choice.generated_token_ids.len() as u32;
        }
        let mut stream = self.client.clone().generate(request).await?.into_inner();
        let mut output = Output {
            tokens: vec![vec![]; n],
            logprobs: vec![vec![]; n],
            finish: vec![0; n],
            ..Default::default()
        };
        while let Some(answer) = stream.next().await {
            match answer?.event.unwrap() {
                wire::generate_response::Event::Started(_) => {}
                wire::generate_response::Event::Delta(delta) => {
                    let choice = delta.choice as usize;
                    if !delta.tokens.is_empty() {
                        let expected = generated[choice] + output.tokens[choice].len() as u32;
                        assert_eq!(delta.position, expected, "no gap and no repetition");
                    }
                    for token in delta.tokens {
                        output.tokens[choice].push(token.token_id);
                        output.logprobs[choice].extend(token.logprob);
                    }
                    output.finish[choice] = delta.finish_reason;
                }
                wire::generate_response::Event::Finished(finished) => {
                    output.usage = finished.usage.unwrap();
                    output.prefilled_by = finished.prefill_worker.map(|rank| rank.instance_id);
                    return Ok(output);
                }
            }
        }
        panic!("the stream ended without a last message");
    }

    /// A number from the worker's own metrics.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    }

    /// The metrics page.
    pub(crate) async fn metrics(&self) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut connection = self.network.connect(&self.admin).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).await.unwrap();
        text
    }

    /// Waits until nothing is held by requests: every counter back to zero.
    pub(crate) async fn quiet(&self) {
        let names = [
            "armature_worker_running",
            "armature_worker_waiting",
            "armature_worker_kv_blocks_active",
            "armature_worker_kv_blocks_quarantined",
            "armature_worker_kv_blocks_promised",
        ];
        for name in names {
            wait_until(name, async || self.metric(name).await == 0.0).await;
        }
    }
}

/// Waits for a state; says which one it waited for in vain.
pub(crate) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}

/// A prompt of `len` tokens that differs by `salt`.
pub(crate) fn prompt(len: usize, salt: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(salt * 97) >> 7) % 250).collect()
}

/// Both transports, each on its own.
pub(crate) const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Shm];
