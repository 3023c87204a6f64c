//! One forward pass as planned and as it went.

use std::time::Duration;

use crate::domain::ids::{BlockId, RequestId, SeqId, StepId};
use crate::domain::sampled::Sampled;
use crate::domain::step_model::StepWork;

/// Consecutive tokens of one sequence in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedChunk {
    /// The sequence.
    pub seq: SeqId,
    /// The request it belongs to.
    pub request: RequestId,
    /// Position of `tokens[0]`: how many tokens of the sequence have their KV already.
    pub start: usize,
    /// Tokens to compute.
    pub tokens: Vec<u32>,
    /// Block table of positions `0..start + tokens.len()`.
    pub blocks: Vec<BlockId>,
    /// Choices whose next token is sampled from the logits of the chunk's last token; empty while
    /// the prompt is not complete.
    pub sample_choices: Vec<u32>,
}

/// A copy of the first `tokens` slots of a block, all layers, before the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Source block.
    pub from: BlockId,
    /// Destination block.
    pub to: BlockId,
    /// Slots to copy, from 0.
    pub tokens: usize,
}

/// One pass: copies first, then all chunks together.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    /// The step's number.
    pub id: StepId,
    /// Copies to execute before the pass.
    pub copies: Vec<BlockCopy>,
    /// Chunks of the pass; decode rows first. At most one chunk of a sequence.
    pub chunks: Vec<PlannedChunk>,
    /// The pass's work, as the step model counts it.
    pub work: StepWork,
}

impl StepPlan {
    /// Whether there is nothing to do: nothing is in flight then, and no commit is expected.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.copies.is_empty()
    }
}

/// How a pass went.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepResult {
    /// The sampled tokens: for each `(chunk, choice)` of the plan's `sample_choices`. A missing one
    /// of a chunk that was not dropped could not be sampled: its choice ends with `Error`.
    pub samples: Vec<(SeqId, u32, Sampled)>,
    /// How long the pass and the sampling took.
    pub elapsed: Duration,
    /// Sequences whose rows the engine dropped between layers: nothing of their chunk counts.
    pub dropped: Vec<SeqId>,
}
