//! The router as a process: arguments, configuration, telemetry, start, drain.

use std::process::ExitCode;

use armature_router::app::{self, Parts, StartError};
use armature_router::config::Config;
use armature_svc_kit::config::{self, ConfigArgs, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Exit;
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
    let args = Args::parse();
    let config: Config = match config::load("router", &args.config, Flags::new(), std::env::vars()) {
        Ok(config) => config,
        Err(error) => return fail(Exit::Configuration, &error.into()),
    };
    if args.config.print_config {
        return match config::to_toml(&config) {
            Ok(text) => {
                use std::io::Write as _;
                let _ = std::io::stdout().write_all(text.as_bytes());
                Exit::Success.into()
            }
            Err(error) => fail(Exit::Configuration, &error.into()),
        };
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(Exit::Failure, &error.into()),
    };
    if args.config.probe { runtime.block_on(probe(config)) } else { runtime.block_on(serve(config)) }
}

async fn probe(config: Config) -> ExitCode {
    match health_check::ready(&Network::new(), config.admin.as_ref()).await {
        Ok(()) => Exit::Success.into(),
        Err(error) => fail(Exit::Failure, &error.into()),
    }
}

async fn serve(config: Config) -> ExitCode {
    let telemetry = match Telemetry::start(&config.telemetry, "router") {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(Exit::Configuration, &error.into()),
    };
    let drain = Drain::new();
    tokio::spawn(drain.clone().on_signals());
    let parts = Parts { network: Network::new(), registry: Registry::default(), drain };
    let running = match app::start(config, parts).await {
        Ok(running) => running,
        Err(error @ StartError::Bind(_)) => return fail(Exit::Failure, &error.into()),
        Err(error) => return fail(Exit::Configuration, &error.into()),
    };
    tracing::info!(grpc = %running.grpc, admin = ?running.admin, instance = %running.instance, "router listens");
    let code = match running.finished().await {
        Ok(()) => Exit::Success.into(),
        Err(error) => fail(Exit::Failure, &error.into()),
    };
    telemetry.shutdown();
    code
}

fn fail(exit: Exit, error: &anyhow::Error) -> ExitCode {
    eprintln!("armature-router: {error:#}");
    exit.into()
}
