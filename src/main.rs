//! `armature`: serves large language models across many workers, in one process or as a client of a fleet.
//!
//! Does: start every service with embedded backends (`up`), fetch the reference model, chat, show the fleet.
//! Does not: contain any serving logic; the services do.

mod chat;
mod cli;
mod model;
mod sse;
mod status;
mod table;
mod up;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, ModelCommand};

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Up(args) => up::run(args).await,
        Command::Model(ModelCommand::Fetch(args)) => model::fetch(args).await,
        Command::Chat(args) => chat::run(args).await,
        Command::Status(args) => status::run(args).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("armature: {error:#}");
            ExitCode::FAILURE
        }
    }
}
