//! `armature-worker`: arguments, configuration, telemetry, start, drain.

mod model_command;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use armature_svc_kit::config::{self, ConfigArgs, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::{self, Failed};
use armature_svc_kit::health_check;
use armature_svc_kit::network::Network;
use armature_svc_kit::telemetry::Telemetry;
use armature_worker::app::{Parts, start};
use armature_worker::config::Config;
use clap::{Parser, Subcommand};
use model_command::ModelCommand;
use prometheus_client::registry::Registry;

/// One engine behind one contract: scheduler, paged KV pool, hand-off, drain.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Engine: llama, sim, or that of somebody else: vllm, sglang, llamacpp, openai (as it calls itself)
    #[arg(long)]
    engine: Option<String>,
    /// Where the engine of somebody else is: http://host:port
    #[arg(long, value_name = "URL")]
    engine_url: Option<String>,
    /// Its tokenizer: a GGUF file, a tokenizer.json, or the folder that has one
    #[arg(long, value_name = "PATH")]
    engine_tokenizer: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Models on this machine
    #[command(subcommand)]
    Model(ModelCommand),
}

fn main() -> ExitCode {
    exit::run("armature-worker", serve)
}

async fn serve(args: Args) -> Result<(), Failed> {
    if let Some(Command::Model(ModelCommand::Fetch(args))) = args.command {
        return args.run().await.map_err(Failed::running);
    }
    let flags = Flags::new()
        .set("engine", args.engine)
        .set("openai.url", args.engine_url)
        .set("openai.tokenizer", args.engine_tokenizer);
    let config: Config = config::load("worker", &args.config, flags, std::env::vars())?;
    if args.config.probe {
        return health_check::ready(&Network::new(), config.admin.as_ref()).await.map_err(Failed::running);
    }
    if args.config.print_config {
        return Ok(config::print(&config)?);
    }
    let telemetry = Telemetry::start(&config.telemetry, "armature-worker")?;
    let drain = Drain::new();
    tokio::spawn(drain.clone().on_signals());
    let parts =
        Parts { network: Network::new(), registry: Registry::default(), weights: Arc::default(), drain };
    start(config, parts).await?.finished().await.map_err(Failed::running)?;
    telemetry.shutdown();
    Ok(())
}
