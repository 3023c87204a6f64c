//! The frontend as a process: arguments, configuration, telemetry, start, drain.

use std::io::Write as _;
use std::process::ExitCode;

use armature_frontend::app::{self, Parts, StartError};
use armature_frontend::config::Config;
use armature_svc_kit::config::{self, ConfigArgs, Flags};
use armature_svc_kit::drain::Drain;
use armature_svc_kit::exit::Exit;
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
    let args = Args::parse();
    let config: Config = match config::load("frontend", &args.config, Flags::new(), std::env::vars()) {
        Ok(config) => config,
        Err(error) => return fail(Exit::Configuration, &error.into()),
    };
    if args.config.print_config {
        return match config::to_toml(&config) {
            Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => Exit::Success.into(),
                Err(error) => fail(Exit::Failure, &error.into()),
            },
            Err(error) => fail(Exit::Configuration, &error.into()),
        };
    }
    match tokio::runtime::Runtime::new() {
        Ok(runtime) if args.config.probe => runtime.block_on(probe(config)),
        Ok(runtime) => runtime.block_on(serve(config)),
        Err(error) => fail(Exit::Failure, &error.into()),
    }
}

async fn probe(config: Config) -> ExitCode {
    match health_check::ready(&Network::new(), config.admin.as_ref()).await {
        Ok(()) => Exit::Success.into(),
        Err(error) => fail(Exit::Failure, &error.into()),
    }
}

async fn serve(config: Config) -> ExitCode {
    let telemetry = match Telemetry::start(&config.telemetry, "frontend") {
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
    tracing::info!(http = %running.http, grpc = %running.grpc, admin = ?running.admin, "frontend listens");
    let code = match running.finished().await {
        Ok(()) => Exit::Success.into(),
        Err(error) => fail(Exit::Failure, &error.into()),
    };
    telemetry.shutdown();
    code
}

fn fail(exit: Exit, error: &anyhow::Error) -> ExitCode {
    // Nobody is left to tell when standard error is gone, too.
    let _ = writeln!(std::io::stderr(), "armature-frontend: {error:#}");
    exit.into()
}
