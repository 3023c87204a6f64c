//! `armature-worker`: arguments, configuration, telemetry, start, drain.

mod model_command;

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
    let config: Config = config::load("worker", &args.config, Flags::new(), std::env::vars())?;
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
