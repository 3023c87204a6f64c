//! A timing model behind the engine port: real KV accounting, real sampling, no mathematics.
//!
//! Each token's KV is filled with a pattern ([`entry`]) that depends on all tokens before it and
//! from which the engine continues; so wrong, missing or misplaced KV is an error that names the
//! position and never silently used. Time is spent by a closure, layer by layer.

mod artifacts;
mod chain;
mod config;
mod entry;
mod text;
mod timing;

#[cfg(test)]
mod random_operations;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::chain::ChainHash;
use self::entry::{Entry, Mismatch, Place};
use crate::kv_memory::KvMemory;
use crate::ports::{Chunk, Engine, EngineError, ModelSpec, StepOutput, StepWatch};

pub use self::config::{SimConfig, SimConfigError, Verify};
pub use self::text::{END_OF_TEXT, FIRST_RESERVED, IM_END, IM_START};
pub use self::timing::{Mode, PassLoad, Polynomial, pass_time};

/// Spends the time of a layer: sleeps, moves a virtual clock, or nothing.
pub type Sleeper = Box<dyn FnMut(Duration) + Send>;

/// The simulated engine.
pub struct SimEngine {
    config: SimConfig,
    spec: ModelSpec,
    sleeper: Sleeper,
}

/// A chunk with the KV it is going to write: one entry per token.
struct Row<'a, 'c> {
    chunk: &'a Chunk<'c>,
    entries: Vec<(Place, Entry)>,
    live: bool,
}

impl SimEngine {
    /// An engine for a model; `sleeper` is told, once per layer, how long the layer takes.
    ///
    /// # Errors
    /// A setting outside its limits.
    pub fn new(config: SimConfig, sleeper: Sleeper) -> Result<Self, SimConfigError> {
        config.validate()?;
        let spec = config.spec();
        Ok(Self { config, spec, sleeper })
    }

    /// The model's `tokenizer.json`.
    pub fn tokenizer_json(&self) -> Vec<u8> {
        artifacts::tokenizer_json(self.config.vocab_size)
    }

    /// The model's chat template: `{chat_template, bos_token, eos_token, add_bos}`.
    pub fn template_json(&self) -> Vec<u8> {
        artifacts::template_json()
    }

    /// The entries that a chunk will write, continuing from what is verified in the pool.
    fn row<'a, 'c>(&self, chunk: &'a Chunk<'c>, kv: &KvMemory) -> Result<Row<'a, 'c>, EngineError> {
        let vocab_size = self.config.vocab_size;
        if let Some(token) = chunk.tokens.iter().find(|token| **token as usize >= vocab_size) {
            return Err(EngineError::TokenOutOfRange { token: *token, vocab_size });
        }
        let end = chunk.start + chunk.tokens.len();
        if chunk.tokens.is_empty() || end > self.config.context_length {
            return Err(EngineError::Failed(format!("a chunk of positions {}..{end}", chunk.start)));
        }
        let mut hash = self.continue_from(chunk, kv)?;
        let mut entries = Vec::with_capacity(chunk.tokens.len());
        for (token, position) in chunk.tokens.iter().zip(chunk.start..) {
            hash = hash.then(*token);
            entries.push((self.place(chunk, position)?, Entry { hash, token: *token }));
        }
        Ok(Row { chunk, entries, live: true })
    }

    /// Chain hash of the tokens before a chunk, read from the pool.
    fn continue_from(&self, chunk: &Chunk<'_>, kv: &KvMemory) -> Result<ChainHash, EngineError> {
        let root = ChainHash::root(&self.spec.model_digest);
        let (first, mut before) = match self.config.verify {
            Verify::Full => (0, Some(root)),
            Verify::Last => (chunk.start.saturating_sub(1), (chunk.start <= 1).then_some(root)),
        };
        for position in first..chunk.start {
            let corrupt =
                |mismatch: Mismatch| EngineError::CorruptKv { position, detail: mismatch.to_string() };
            let entry = Entry::read(kv, self.place(chunk, position)?).map_err(corrupt)?;
            if before.is_some_and(|before| before.then(entry.token) != entry.hash) {
                return Err(corrupt(Mismatch::OtherPast));
            }
            before = Some(entry.hash);
        }
        Ok(before.unwrap_or(root))
    }

    fn place(&self, chunk: &Chunk<'_>, position: usize) -> Result<Place, EngineError> {
        Place::of(position, chunk.blocks, self.config.block_size)
            .ok_or_else(|| EngineError::Failed(format!("the block table does not cover position {position}")))
    }

    fn logits(&self, row: &Row<'_, '_>) -> Option<Vec<f32>> {
        let (_, last) = row.entries.last()?;
        let SimConfig { vocab_size, eos_probability, .. } = self.config;
        (row.live && row.chunk.wants_logits)
            .then(|| text::logits(last.hash, last.token, vocab_size, eos_probability))
    }
}

impl Engine for SimEngine {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn forward(
        &mut self,
        chunks: &[Chunk<'_>],
        kv: &KvMemory,
        watch: &mut dyn StepWatch,
    ) -> Result<StepOutput, EngineError> {
        if *kv.geometry() != self.spec.kv {
            return Err(EngineError::Failed(format!("the pool holds {:?}", kv.geometry())));
        }
        let rows: Result<Vec<_>, _> = chunks.iter().map(|chunk| self.row(chunk, kv)).collect();
        let mut rows = rows?;
        let pass = pass_time(&self.config, &PassLoad::of(self.config.mode, chunks), kv.blocks());
        let per_layer = pass / self.config.layers as u32;
        for layer in 0..self.config.layers {
            for row in &mut rows {
                row.live &= watch.is_live(row.chunk.seq);
            }
            if rows.iter().all(|row| !row.live) {
                break;
            }
            (self.sleeper)(per_layer);
            for (place, entry) in rows.iter().filter(|row| row.live).flat_map(|row| &row.entries) {
                entry.write(kv, *place, layer);
            }
            watch.layer_done(layer);
        }
        Ok(StepOutput {
            logits: rows.iter().map(|row| self.logits(row)).collect(),
            computed_tokens: rows.iter().filter(|row| row.live).map(|row| row.entries.len() as u64).sum(),
        })
    }
}
