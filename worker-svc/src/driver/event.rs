//! What a request's handler is told.

use std::ops::Range;

use armature_contracts::error::Fault;

use crate::domain::ids::BlockId;
use crate::domain::scheduler::Effect;

/// One event of a request, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Whoever computes it has taken the request; not said of a hand-off, whose blocks are promised first.
    Admitted,
    /// Something happened to it.
    Effect(Effect),
    /// It is over, for a reason that is not the scheduler's.
    Lost(Fault),
    /// Source: a layer of more tokens is complete while later layers still compute.
    Layer(LayerReady),
}

/// KV that is complete in one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerReady {
    /// The layer, from 0.
    pub layer: usize,
    /// The tokens.
    pub tokens: Range<usize>,
    /// Block table of tokens `0..tokens.end`.
    pub blocks: Vec<BlockId>,
}
