//! `armature up`: every service in this process, talking over in-memory pipes.

mod fleet;
mod forward;
mod greeting;
mod workers;

use armature_svc_kit::drain::{Drain, Phase};
use armature_svc_kit::exit::Failed;
use armature_svc_kit::telemetry::{Telemetry, TelemetryConfig};

use crate::cli::UpArgs;
use fleet::Fleet;

/// Serves until Ctrl-C or SIGTERM, then drains.
pub(crate) async fn run(args: UpArgs) -> Result<(), Failed> {
    let logs = TelemetryConfig { log_level: args.log.clone(), ..TelemetryConfig::default() };
    let telemetry = Telemetry::start(&logs, "armature")?;
    let stop = Drain::new();
    tokio::spawn(stop.clone().on_signals());
    let fleet = tokio::select! {
        fleet = Fleet::start(&args) => fleet?,
        () = stop.draining() => return Ok(()),
    };
    tokio::select! {
        ready = fleet.ready() => ready?,
        () = stop.draining() => {}
    }
    if stop.phase() == Phase::Serving {
        greeting::print(&fleet).await;
    }
    stop.draining().await;
    eprintln!("draining (a second Ctrl-C exits at once)");
    fleet.drain().await?;
    telemetry.shutdown();
    Ok(())
}
