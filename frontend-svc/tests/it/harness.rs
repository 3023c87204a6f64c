//! One frontend and its neighbours.

use armature_contracts::discovery::v1 as discovery;
use armature_contracts::discovery::v1::discovery_service_server::DiscoveryServiceServer;
use armature_contracts::router::v1::router_service_server::RouterServiceServer;
use armature_contracts::worker::v1::worker_service_server::WorkerServiceServer;
use armature_frontend::app::{self, Parts, Running};
use armature_frontend::config::Config;
use armature_svc_kit::address::Address;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::limited;
use armature_svc_kit::network::Network;
use armature_svc_kit::server::{Server, ServerMetrics, ServerOptions};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use prost::Message as _;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::fake_discovery::FakeDiscovery;
use crate::fake_router::FakeRouter;
use crate::fake_worker::{FakeWorker, Script};

pub(crate) const MODEL: &str = "tiny";
pub(crate) const CONTEXT: u32 = 256;
/// `<|im_end|>`, the model's end token.
pub(crate) const END: u32 = 257;

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

pub(crate) struct Harness {
    pub(crate) network: Network,
    pub(crate) discovery: FakeDiscovery,
    pub(crate) routers: Vec<FakeRouter>,
    pub(crate) workers: Vec<FakeWorker>,
    pub(crate) drain: Drain,
    pub(crate) running: Running,
    /// The neighbours: they end with the harness.
    _tasks: JoinSet<()>,
    pub(crate) card: Bytes,
}

/// What a test changes of the usual.
pub(crate) struct Setup {
    pub(crate) workers: Vec<Script>,
    pub(crate) routers: usize,
    pub(crate) config: Config,
}

impl Default for Setup {
    fn default() -> Self {
        // Nobody is waited for: tests of what happens then want to see it.
        let config = Config { hold_seconds: 0, ..Config::default() };
        Self { workers: vec![says("Hello, world")], routers: 1, config }
    }
}

/// A worker that says `text` and ends with the model's end token.
pub(crate) fn says(text: &str) -> Script {
    Script { text: text.as_bytes().to_vec(), end_token: Some(END), burst: 1, cached: 3, ..Script::default() }
}

impl Harness {
    pub(crate) async fn start(setup: Setup) -> Self {
        let network = Network::new();
        let mut tasks = JoinSet::new();
        let fake = FakeDiscovery::new();
        let server = plain().service(limited!(DiscoveryServiceServer::new(fake.clone())));
        serve(&network, &mut tasks, "discovery", server, CancellationToken::new()).await;
        let card = fake.store(card(&fake, MODEL).encode_to_vec());

        let mut workers = Vec::new();
        let mut addresses = Vec::new();
        for (script, id) in setup.workers.into_iter().zip(0xa1_u64..) {
            let worker = FakeWorker::new(script);
            let name = format!("worker-{id:x}");
            let server = plain().service(limited!(WorkerServiceServer::new(worker.clone())));
            serve(&network, &mut tasks, &name, server, worker.dead.clone()).await;
            fake.put(instance(id, discovery::Component::Worker, &name, card.clone()));
            addresses.push((id, format!("mem:{name}")));
            workers.push(worker);
        }
        let mut routers = Vec::new();
        for (id, name) in (0xb1_u64..).zip(["router-1", "router-2", "router-3"]).take(setup.routers) {
            let router = FakeRouter::new(name);
            router.workers.lock().unwrap().clone_from(&addresses);
            let server = plain().service(limited!(RouterServiceServer::new(router.clone())));
            serve(&network, &mut tasks, name, server, CancellationToken::new()).await;
            fake.put(instance(id, discovery::Component::Router, name, Bytes::new()));
            routers.push(router);
        }
        let config = Config {
            http: Address::mem("http"),
            grpc: Address::mem("grpc"),
            admin: Some(Address::mem("admin")),
            discovery: vec![Address::mem("discovery")],
            ..setup.config
        };
        let drain = Drain::new();
        let parts = Parts { network: network.clone(), registry: Registry::default(), drain: drain.clone() };
        let running = app::start(config, parts).await.unwrap();
        let harness =
            Self { network, discovery: fake, routers, workers, drain, running, _tasks: tasks, card };
        if setup.routers > 0 && !harness.workers.is_empty() {
            harness.listed(MODEL).await;
        }
        harness
    }

    pub(crate) async fn says(text: &str) -> Self {
        Self::start(Setup { workers: vec![says(text)], ..Setup::default() }).await
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.network, "http").await
    }

    /// Waits until `model` is listed.
    pub(crate) async fn listed(&self, model: &str) {
        let mut client = self.client().await;
        loop {
            let list = client.get("/v1/models").await.json();
            if list["data"].as_array().unwrap().iter().any(|it| it["id"] == model) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn router(&self) -> &FakeRouter {
        &self.routers[0]
    }

    pub(crate) async fn metrics(&self) -> String {
        Client::connect(&self.network, "admin").await.get("/metrics").await.text()
    }
}

fn plain() -> Server {
    Server::new(ServerOptions::default(), ServerMetrics::default())
}

pub(crate) async fn serve(
    network: &Network,
    tasks: &mut JoinSet<()>,
    name: &str,
    server: Server,
    dead: CancellationToken,
) {
    let listener = network.bind(&Address::mem(name)).await.unwrap();
    // Dropping the server cuts its connections, as the death of its process would.
    tasks.spawn(async move {
        dead.run_until_cancelled(server.serve(listener, Drain::new())).await;
    });
}

pub(crate) fn instance(
    id: u64,
    component: discovery::Component,
    name: &str,
    card: Bytes,
) -> discovery::Instance {
    discovery::Instance {
        instance_id: id,
        namespace: "default".into(),
        component: component.into(),
        addresses: [("grpc".to_owned(), format!("mem:{name}"))].into(),
        card_digest: card,
        status: discovery::InstanceStatus::Ready.into(),
        lease_epoch: 1,
        ..Default::default()
    }
}

/// A byte-level model: token b is byte b; 256 and 257 are `<|im_start|>` and `<|im_end|>`.
pub(crate) fn card(discovery: &FakeDiscovery, name: &str) -> discovery::ModelCard {
    let tokenizer = discovery.store(tokenizer_json());
    let template = json!({"chat_template": TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos": false});
    discovery::ModelCard {
        served_name: name.into(),
        aliases: vec![format!("{name}-alias")],
        model_digest: Bytes::from_static(&[7; 32]),
        tokenizer_digest: tokenizer,
        template_digest: discovery.store(template.to_string()),
        context_length: CONTEXT,
        block_size: 16,
        kv_blocks: 64,
        roles: vec![discovery::Role::Aggregated.into()],
        hash_scheme: armature_kv_hash::HASH_SCHEME.into(),
        vocab_size: 258,
        eos_token_ids: vec![END],
        layout: Some(armature_contracts::kv::v1::KvLayout {
            compat_key: Bytes::from_static(b"key"),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn tokenizer_json() -> String {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..256_u32 {
        let stand_in = if printable(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        vocabulary.insert(char::from_u32(stand_in).unwrap().to_string(), byte.into());
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(256, "<|im_start|>"), special(257, "<|im_end|>")],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
    .to_string()
}
