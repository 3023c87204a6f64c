//! `armature up`: every service in this process, talking over in-memory pipes.

mod fleet;
mod forward;
mod greeting;

use anyhow::Result;
use armature_svc_kit::drain::Drain;
use armature_svc_kit::telemetry::{Telemetry, TelemetryConfig};

use crate::cli::UpArgs;
use fleet::Fleet;

/// Serves until Ctrl-C or SIGTERM, then drains.
pub(crate) async fn run(args: UpArgs) -> Result<()> {
    let logs = TelemetryConfig { log_level: args.log.clone(), ..TelemetryConfig::default() };
    let telemetry = Telemetry::start(&logs, "armature")?;
    let stop = Drain::new();
    let signals = tokio::spawn(stop.clone().on_signals());
    let fleet = tokio::select! {
        fleet = Fleet::start(&args) => fleet?,
        () = stop.draining() => return Ok(()),
    };
    tokio::select! {
        ready = fleet.ready() => ready?,
        () = stop.draining() => {}
    }
    if stop.phase() == armature_svc_kit::drain::Phase::Serving {
        greeting::print(&fleet).await?;
    }
    stop.draining().await;
    eprintln!("draining (a second Ctrl-C exits at once)");
    fleet.drain().await?;
    signals.abort();
    telemetry.shutdown();
    Ok(())
}
