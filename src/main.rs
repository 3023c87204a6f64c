//! `armature`: serves large language models across many workers, in one process or as a client of a fleet.
//!
//! Does: start every service with embedded backends (`up`), fetch the reference model, chat, show the fleet, simulate one (`sim`).
//! Does not: contain any serving logic; the services do.

mod chat;
mod cli;
mod model;
mod replay;
mod simulate;
mod sse;
mod status;
mod table;
mod up;

use std::process::ExitCode;

use armature_svc_kit::exit::{self, Failed};

use cli::{Cli, Command, ModelCommand, ReplayCommand};

fn main() -> ExitCode {
    exit::run("armature", run)
}

async fn run(cli: Cli) -> Result<(), Failed> {
    match cli.command {
        Command::Up(args) => up::run(*args).await,
        Command::Model(ModelCommand::Fetch(args)) => model::fetch(args).await.map_err(Failed::running),
        Command::Chat(args) => chat::run(args).await.map_err(Failed::running),
        Command::Replay(ReplayCommand::Decisions(args)) => replay::decisions(args),
        Command::Status(args) => status::run(args).await,
        Command::Sim(args) => tokio::task::block_in_place(|| simulate::run(&args)),
    }
}
