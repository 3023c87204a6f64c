//! The workers of one process: on engines of its own, or before those of somebody else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use armature_svc_kit::address::Address;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Failed;
use armature_svc_kit::network::Network;
use armature_worker::config::{Config as WorkerConfig, EngineKind, Transport};
use armature_worker::engine::llama::WeightStore;
use armature_worker::identity::Role;

use super::fleet::{DISCOVERY, Service, wrong};
use crate::cli::{BackendKind, UpArgs};
use crate::model;

/// KV blocks of a worker on the real engine: one sequence of SmolLM2's whole context.
const LLAMA_BLOCKS: usize = 512;
const SIM_BLOCKS: usize = 16_384;

/// Starts a worker before each engine of somebody else.
pub(super) async fn before_backends(network: &Network, args: &UpArgs) -> Result<Vec<Service>, Failed> {
    let engine = match args.backend_kind {
        None | Some(BackendKind::Openai) => EngineKind::OpenAi,
        Some(BackendKind::Vllm) => EngineKind::Vllm,
        Some(BackendKind::Sglang) => EngineKind::Sglang,
        Some(BackendKind::Llamacpp) => EngineKind::LlamaCpp,
    };
    let mut services = Vec::new();
    for (number, url) in args.backend.iter().enumerate() {
        eprintln!("looking at the engine at {url}");
        let name = format!("worker-{}", number + 1);
        let mut config = WorkerConfig {
            engine,
            listen: Address::mem(&name),
            admin: None,
            discovery: vec![Address::mem(DISCOVERY)],
            ..WorkerConfig::default()
        };
        config.openai.url.clone_from(url);
        config.openai.tokenizer.clone_from(&args.backend_tokenizer);
        config.openai.template.clone_from(&args.backend_template);
        config.openai.start_seconds = args.backend_patience;
        services.push(start(network, config, name, Arc::default()).await?);
    }
    Ok(services)
}

async fn start(
    network: &Network,
    config: WorkerConfig,
    name: String,
    weights: Arc<WeightStore>,
) -> Result<Service, Failed> {
    let drain = Drain::new();
    let parts = armature_worker::app::Parts {
        network: network.clone(),
        registry: Default::default(),
        weights,
        drain: drain.clone(),
    };
    let running = armature_worker::app::start(config, parts)
        .await
        .map_err(|error| Failed::from(error).during(format!("cannot start {name}")))?;
    Ok(Service::run(name, drain, running.finished()))
}

/// Starts the workers of each model: all of a model share its weights.
pub(super) async fn of_models(
    network: &Network,
    args: &UpArgs,
    models: &[Option<PathBuf>],
) -> Result<Vec<Service>, Failed> {
    let roles: Vec<Role> =
        [(Role::Prefill, args.prefill), (Role::Decode, args.decode), (Role::Aggregated, args.aggregated)]
            .into_iter()
            .flat_map(|(role, count)| std::iter::repeat_n(role, count))
            .collect();
    if args.decode + args.aggregated == 0 {
        return Err(wrong("nothing would decode: start at least one worker with --decode or --aggregated"));
    }
    let weights: Arc<WeightStore> = Arc::default();
    // Sockets of this process only; the folder goes when the process does.
    let shm_dir = std::env::temp_dir().join(format!("armature-{}", std::process::id()));
    let mut services = Vec::new();
    for model in models {
        for role in &roles {
            let name = format!("worker-{}-{}", services.len() + 1, format!("{role:?}").to_lowercase());
            let config = worker_config(args, model.as_deref(), *role, &name, &shm_dir)?;
            if services.len() % roles.len() == 0 {
                eprintln!(
                    "loading {}",
                    model.as_deref().map_or("sim".into(), |path| path.display().to_string())
                );
            }
            services.push(start(network, config, name, Arc::clone(&weights)).await?);
        }
    }
    Ok(services)
}

fn worker_config(
    args: &UpArgs,
    model: Option<&Path>,
    role: Role,
    name: &str,
    shm_dir: &Path,
) -> Result<WorkerConfig, Failed> {
    let transports: Vec<Transport> = args
        .transports
        .iter()
        .map(|text| match text.as_str() {
            "shm" => Ok(Transport::Shm),
            "tcp" => Ok(Transport::Tcp),
            other => Err(wrong(format!("--transports: {other:?} is none of shm, tcp"))),
        })
        .collect::<Result<_, _>>()?;
    let engine = if model.is_some() { EngineKind::Llama } else { EngineKind::Sim };
    let blocks = if model.is_some() { LLAMA_BLOCKS } else { SIM_BLOCKS };
    let mut config = WorkerConfig {
        role,
        engine,
        served_name: model.map(served_name).unwrap_or_default(),
        model: model.map(Path::to_owned),
        cache_dir: Some(model::cache_dir().map_err(Failed::configuration)?.join("weights")),
        threads: args.threads,
        kv_blocks: args.kv_blocks.unwrap_or(blocks),
        listen: Address::mem(name),
        kv_listen: Address::tcp("127.0.0.1", 0),
        admin: None,
        discovery: vec![Address::mem(DISCOVERY)],
        transports,
        shm_dir: shm_dir.to_owned(),
        ..WorkerConfig::default()
    };
    config.sim.speedup = args.speedup;
    Ok(config)
}

/// The name under which a file is served: the reference model's own, else the file's.
fn served_name(path: &Path) -> String {
    if model::reference().is_ok_and(|reference| reference == path) {
        return armature_worker::reference_model::NAME.into();
    }
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}
