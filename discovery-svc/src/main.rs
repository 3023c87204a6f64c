//! armature-discovery: arguments, configuration, telemetry, start, drain.

use std::process::ExitCode;

use armature_discovery::app::{self, Parts, StartError};
use armature_discovery::config::Config;
use armature_svc_kit::config::{self, ConfigArgs, ConfigError, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Exit;
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

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => Exit::Success,
        Err(error) => {
            tracing::error!(%error, "stopped");
            // Before telemetry there is no log.
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "armature-discovery: {error:#}");
            let configuration =
                matches!(error.downcast_ref(), Some(StartError::Config(_) | StartError::File { .. }))
                    || error.downcast_ref::<ConfigError>().is_some();
            if configuration { Exit::Configuration } else { Exit::Failure }
        }
    }
    .into()
}

async fn run(args: Args) -> anyhow::Result<()> {
    let flags = Flags::new().set("listen", args.listen).set("admin", args.admin);
    let config: Config = config::load("discovery", &args.config, flags, std::env::vars())?;
    if args.config.probe {
        return Ok(health_check::ready(&Network::new(), config.admin.as_ref()).await?);
    }
    if args.config.print_config {
        use std::io::Write as _;
        return Ok(write!(std::io::stdout(), "{}", config::to_toml(&config)?)?);
    }
    let telemetry = Telemetry::start(&config.telemetry, "discovery")?;
    let drain = Drain::new();
    let signals = tokio::spawn(drain.clone().on_signals());
    let parts = Parts { network: Network::new(), registry: Registry::default(), drain };
    let finished = app::start(config, parts).await?.finished().await;
    signals.abort();
    telemetry.shutdown();
    Ok(finished?)
}
