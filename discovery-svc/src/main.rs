//! armature-discovery: arguments, configuration, telemetry, start, drain.

use std::process::ExitCode;

use armature_discovery::app::{self, Parts};
use armature_discovery::config::Config;
use armature_svc_kit::config::{self, ConfigArgs, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::{self, Failed};
use armature_svc_kit::health_check;
use armature_svc_kit::network::Network;
use armature_svc_kit::telemetry::Telemetry;
use clap::Parser;
use prometheus_client::registry::Registry;

/// Who is alive: instances, leases, model cards, leadership.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Where gRPC is served, as `listen`.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where the admin pages are served, as `admin`.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
}

fn main() -> ExitCode {
    exit::run("armature-discovery", serve)
}

async fn serve(args: Args) -> Result<(), Failed> {
    let flags = Flags::new().set("listen", args.listen).set("admin", args.admin);
    let config: Config = config::load("discovery", &args.config, flags, std::env::vars())?;
    if args.config.probe {
        return health_check::ready(&Network::new(), config.admin.as_ref()).await.map_err(Failed::running);
    }
    if args.config.print_config {
        return Ok(config::print(&config)?);
    }
    let telemetry = Telemetry::start(&config.telemetry, "discovery")?;
    let drain = Drain::new();
    tokio::spawn(drain.clone().on_signals());
    let parts = Parts { network: Network::new(), registry: Registry::default(), drain };
    app::start(config, parts).await?.finished().await.map_err(Failed::running)?;
    telemetry.shutdown();
    Ok(())
}
