//! `armature-worker`: configuration, telemetry, serve, drain.

mod model_command;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use armature_svc_kit::config::{self, ConfigArgs, ConfigError, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Exit;
use armature_svc_kit::health_check;
use armature_svc_kit::network::Network;
use armature_svc_kit::telemetry::Telemetry;
use armature_worker::app::{Parts, StartError, start};
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
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Models on this machine
    #[command(subcommand)]
    Model(ModelCommand),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => Exit::Success,
        Err(error) => {
            eprintln!("armature-worker: {error:#}");
            let configuration =
                error.is::<ConfigError>() || matches!(error.downcast_ref(), Some(StartError::Config(_)));
            if configuration { Exit::Configuration } else { Exit::Failure }
        }
    }
    .into()
}

async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(Command::Model(ModelCommand::Fetch(args))) = args.command {
        return args.run().await;
    }
    let config: Config = config::load("worker", &args.config, Flags::new(), std::env::vars())?;
    if args.config.probe {
        return Ok(health_check::ready(&Network::new(), config.admin.as_ref()).await?);
    }
    if args.config.print_config {
        return Ok(write!(std::io::stdout(), "{}", config::to_toml(&config)?)?);
    }
    let telemetry = Telemetry::start(&config.telemetry, "armature-worker")?;
    let drain = Drain::new();
    let signals = tokio::spawn(drain.clone().on_signals());
    let parts =
        Parts { network: Network::new(), registry: Registry::default(), weights: Arc::default(), drain };
    let finished = start(config, parts).await?.finished().await;
    signals.abort();
    telemetry.shutdown();
    Ok(finished?)
}
