//! The frontend as a process: arguments, configuration, telemetry, start, drain.

use std::process::ExitCode;

use armature_frontend::app::{self, Parts};
use armature_frontend::config::Config;
use armature_svc_kit::config::{self, ConfigArgs, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::{self, Failed};
use armature_svc_kit::health_check;
use armature_svc_kit::network::Network;
use armature_svc_kit::telemetry::Telemetry;
use clap::Parser;
use prometheus_client::registry::Registry;

/// Serves OpenAI's HTTP API and a gRPC API in front of the fleet.
#[derive(Parser)]
#[command(name = "armature-frontend", version)]
struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

fn main() -> ExitCode {
    exit::run("armature-frontend", serve)
}

async fn serve(args: Args) -> Result<(), Failed> {
    let config: Config = config::load("frontend", &args.config, Flags::new(), std::env::vars())?;
    if args.config.probe {
        return health_check::ready(&Network::new(), config.admin.as_ref()).await.map_err(Failed::running);
    }
    if args.config.print_config {
        return Ok(config::print(&config)?);
    }
    let telemetry = Telemetry::start(&config.telemetry, "frontend")?;
    let drain = Drain::new();
    tokio::spawn(drain.clone().on_signals());
    let parts = Parts { network: Network::new(), registry: Registry::default(), drain };
    let running = app::start(config, parts).await?;
    tracing::info!(http = %running.http, grpc = %running.grpc, admin = ?running.admin, "frontend listens");
    running.finished().await.map_err(Failed::running)?;
    telemetry.shutdown();
    Ok(())
}
