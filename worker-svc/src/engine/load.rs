//! From configuration to a running engine and what others need of its model.

use std::path::Path;

use super::llama::{self, LoadError, LoadOptions, WeightStore};
use super::sim::{SimConfigError, SimEngine};
use crate::config::{Config, EngineKind};
use crate::ports::Engine;

/// An engine, and its model's tokenizer and template for those who see text.
#[derive(Debug)]
pub struct Loaded {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// `tokenizer.json` of Hugging Face's tokenizers.
    pub tokenizer: Vec<u8>,
    /// `{chat_template, bos_token, eos_token, add_bos}`.
    pub template: Vec<u8>,
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineStartError {
    /// The model cannot be loaded.
    #[error("cannot load the model {path}")]
    Model {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: LoadError,
    },
    /// The simulated model contradicts itself.
    #[error(transparent)]
    Sim(#[from] SimConfigError),
    /// It does not run in this process.
    #[error("this engine is a server of somebody else")]
    External,
}

impl EngineStartError {
    /// True when the machine had too little at that moment, so that nothing is wrong with model and configuration.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Model { source: LoadError::Memory(_) | LoadError::Threads(_), .. })
    }
}

/// Loads the engine that `config` names. Takes seconds and blocks.
///
/// # Errors
/// [`EngineStartError`].
pub fn load(config: &Config, weights: &WeightStore) -> Result<Loaded, EngineStartError> {
    match config.engine {
        EngineKind::Llama => {
            let path = config.model.as_deref().unwrap_or(Path::new(""));
            let options = LoadOptions {
                threads: config.threads,
                cache_dir: config.cache_dir.clone(),
                block_size: config.block_size,
            };
            let engine = llama::load(path, &options, weights)
                .map_err(|source| EngineStartError::Model { path: path.display().to_string(), source })?;
            Ok(Loaded {
                tokenizer: engine.tokenizer_json().to_vec(),
                template: engine.template_json().to_vec(),
                engine: Box::new(engine),
            })
        }
        EngineKind::OpenAi | EngineKind::Vllm | EngineKind::Sglang | EngineKind::LlamaCpp => {
            Err(EngineStartError::External)
        }
        EngineKind::Sim => {
            // The engine's own thread spends the time that a real pass would compute.
            #[allow(clippy::disallowed_methods)]
            let engine = SimEngine::new(config.sim.clone(), Box::new(std::thread::sleep))?;
            Ok(Loaded {
                tokenizer: engine.tokenizer_json(),
                template: engine.template_json(),
                engine: Box::new(engine),
            })
        }
    }
}
