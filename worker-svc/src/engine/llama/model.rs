//! Loading a model, and the engine that runs it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::kv_memory::KvMemory;
use crate::ports::{Chunk, Engine, EngineError, KvGeometry, ModelSpec, StepOutput, StepWatch};

use super::gguf::{Gguf, GgufError};
use super::kernels::{IDENTITY, Kernels};
use super::pass::{Network, Scratch};
use super::rope::Angles;
use super::shape::Shape;
use super::store::WeightStore;
use super::template::template_json;
use super::threads::Threads;
use super::tokenizer::{Pre, tokenizer_json};
use super::weights::Weights;
use super::{cache, mapping};

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Threads of a forward pass; the result does not depend on them.
    pub threads: usize,
    /// Where quantised weights are kept between runs, if anywhere.
    pub cache_dir: Option<PathBuf>,
    /// Tokens per KV block.
    pub block_size: usize,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path is a folder's.
    #[error("it is a folder: name the GGUF file itself")]
    Folder,
    /// The file cannot be read.
    #[error("the file cannot be read")]
    File(#[source] io::Error),
    /// The file is not a model that can be run.
    #[error(transparent)]
    Model(#[from] GgufError),
    /// No memory for the weights.
    #[error("no memory for the weights")]
    Memory(#[source] io::Error),
    /// The system gives no threads.
    #[error("cannot start the engine's threads")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A block of no tokens.
    #[error("a KV block holds at least one token")]
    BlockSize,
}

/// A model, ready to run.
pub struct LlamaEngine {
    spec: ModelSpec,
    shape: Shape,
    weights: Arc<Weights>,
    kernels: Kernels,
    threads: Threads,
    scratch: Scratch,
    tokenizer_json: Vec<u8>,
    template_json: Vec<u8>,
}

impl fmt::Debug for LlamaEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlamaEngine").field("spec", &self.spec).field("kernels", &self.kernels).finish()
    }
}

/// Loads the model in `path`; weights that an engine of this process already has are shared through
/// `store`. Blocks for up to seconds: it reads the file, and quantises it unless a cache has it.
///
/// # Errors
/// [`LoadError`], naming what is wrong with the file.
pub fn load(path: &Path, options: &LoadOptions, store: &WeightStore) -> Result<LlamaEngine, LoadError> {
    if options.block_size == 0 {
        return Err(LoadError::BlockSize);
    }
    if path.is_dir() {
        return Err(LoadError::Folder);
    }
    let bytes = mapping::map(path).map_err(LoadError::File)?;
    let file = Gguf::parse(&bytes)?;
    let shape = Shape::read(&file)?;
    let pre = Pre::read(&file)?;
    let tokenizer_json = tokenizer_json(&file, pre, shape.vocab)?;
    let template_json = template_json(&file, pre)?;
    let digest = *blake3::hash(&bytes).as_bytes();
    let weights = store.get_or_load(&digest, || {
        cache::load(options.cache_dir.as_deref(), &digest, &file, &shape, bytes.len())
    })?;
    let kernels = Kernels::detect();
    let threads = Threads::new(options.threads)?;
    let spec = ModelSpec {
        model_digest: digest,
        name: file.text("general.name")?.unwrap_or("unnamed").to_owned(),
        vocab_size: shape.vocab,
        context_length: shape.context,
        kv: KvGeometry {
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            block_size: options.block_size,
        },
        rope: format!(
            "interleaved dims={} base={} factor={}",
            shape.rope.dims, shape.rope.base, shape.rope.factor
        ),
        kernel: IDENTITY.to_owned(),
        eos_token_ids: end_tokens(&file, shape.vocab)?,
        bos_token_id: token(&file, "tokenizer.ggml.bos_token_id", shape.vocab)?,
    };
    tracing::info!(name = spec.name, kernels = kernels.name(), threads = threads.count(), "model loaded");
    let scratch = Scratch::new(Angles::new(shape.rope), threads.count());
    Ok(LlamaEngine { spec, shape, weights, kernels, threads, scratch, tokenizer_json, template_json })
}

/// A token id that the metadata name.
fn token(file: &Gguf<'_>, key: &str, vocab: usize) -> Result<Option<u32>, GgufError> {
    let id = file.integer(key, vocab - 1)?;
    Ok(id.map(|id| u32::try_from(id).expect("a vocabulary is smaller than 2^32")))
}

/// The tokens that end a generation: of the text, and of a turn or message where the file has them.
pub(super) fn end_tokens(file: &Gguf<'_>, vocab: usize) -> Result<Vec<u32>, GgufError> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    let mut ids = vec![];
    for key in keys {
        ids.extend(token(file, key, vocab)?.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

impl LlamaEngine {
    /// The tokenizer, as a Hugging Face `tokenizer.json`.
    pub fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer_json
    }

    /// Chat template and begin and end tokens:
    /// `{"chat_template", "bos_token", "eos_token", "add_bos"}`, each but the flag possibly null.
    pub fn template_json(&self) -> &[u8] {
        &self.template_json
    }

    /// Computes with `kernels` from now on instead of the fastest ones. No result changes.
    pub fn with_kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = kernels;
        self
    }

    /// The kernels in use.
    pub fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// Refuses what the pass could not address.
    fn check(&self, chunks: &[Chunk<'_>], kv: &KvMemory) -> Result<(), EngineError> {
        let failed = |message: String| Err(EngineError::Failed(message));
        if *kv.geometry() != self.spec.kv {
            return failed(format!("a KV pool of {:?}, not of {:?}", kv.geometry(), self.spec.kv));
        }
        for chunk in chunks {
            let vocab_size = self.spec.vocab_size;
            if let Some(token) = chunk.tokens.iter().find(|token| **token as usize >= vocab_size) {
                return Err(EngineError::TokenOutOfRange { token: *token, vocab_size });
            }
            let seq = chunk.seq.0;
            if chunk.tokens.is_empty() {
                return failed(format!("a chunk of sequence {seq} has no tokens"));
            }
            let end = chunk.start.saturating_add(chunk.tokens.len());
            if end > self.spec.context_length {
                let context = self.spec.context_length;
                return failed(format!("sequence {seq} reaches {end} tokens, the context is {context}"));
            }
            if chunk.blocks.len() < end.div_ceil(self.spec.kv.block_size) {
                return failed(format!("the blocks of sequence {seq} end before token {end}"));
            }
            if let Some(block) = chunk.blocks.iter().find(|block| block.index() >= kv.blocks()) {
                return failed(format!("block {} is outside the pool of {}", block.0, kv.blocks()));
            }
        }
        Ok(())
    }
}

impl Engine for LlamaEngine {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(
        &mut self,
        chunks: &[Chunk<'_>],
        kv: &KvMemory,
        watch: &mut dyn StepWatch,
    ) -> Result<StepOutput, EngineError> {
        self.check(chunks, kv)?;
        let Self { shape, weights, kernels, threads, scratch, .. } = self;
        Network { shape, weights, kernels: *kernels, threads }.run(chunks, kv, watch, scratch)
    }
}
