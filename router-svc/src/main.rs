//! The router as a process: arguments, configuration, telemetry, start, drain.

use std::process::ExitCode;

use armature_router::app::{self, Parts};
use armature_router::config::Config;
use armature_svc_kit::config::{self, ConfigArgs, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::{self, Failed};
use armature_svc_kit::health_check;
use armature_svc_kit::network::Network;
use armature_svc_kit::telemetry::Telemetry;
use clap::Parser;
use prometheus_client::registry::Registry;

/// Chooses workers by KV locality and load.
#[derive(Parser)]
#[command(name = "armature-router", version)]
struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

fn main() -> ExitCode {
    exit::run("armature-router", serve)
}

async fn serve(args: Args) -> Result<(), Failed> {
    let config: Config = config::load("router", &args.config, Flags::new(), std::env::vars())?;
    if args.config.probe {
        return health_check::ready(&Network::new(), config.admin.as_ref()).await.map_err(Failed::running);
    }
    if args.config.print_config {
        return Ok(config::print(&config)?);
    }
    let telemetry = Telemetry::start(&config.telemetry, "router")?;
    let drain = Drain::new();
    tokio::spawn(drain.clone().on_signals());
    let parts = Parts { network: Network::new(), registry: Registry::default(), drain };
    let running = app::start(config, parts).await?;
    tracing::info!(grpc = %running.grpc, admin = ?running.admin, instance = %running.instance, "router listens");
    running.finished().await.map_err(Failed::running)?;
    telemetry.shutdown();
    Ok(())
}
