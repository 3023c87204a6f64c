//! The traits that the worker's core needs from the outside, in domain types.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use armature_contracts::ids::{InstanceId, WorkerRank};
use tokio::sync::watch;

use crate::domain::ids::{BlockId, ReservationKey, SeqId};
use crate::domain::kv_events::{KvBatch, KvEvents, KvSnapshot};
use crate::domain::kv_publisher::LogRange;
use crate::domain::report::{LoadReport, SettledCursor};
use crate::domain::request::Refusal;
use crate::domain::time::Time;
use crate::driver::{Counters, Job, Ticket};
use crate::kv_memory::KvMemory;

/// Consecutive new tokens of one sequence in a forward pass.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The sequence the tokens belong to.
    pub seq: SeqId,
    /// Tokens to compute, at positions `start..start + tokens.len()`; never empty.
    pub tokens: &'a [u32],
    /// Position of `tokens[0]`: how many tokens of the sequence have their KV in `blocks`.
    pub start: usize,
    /// The sequence's block table. It covers at least `start + tokens.len()` positions;
    /// position `p` lives in `blocks[p / block_size]`, slot `p % block_size`.
    pub blocks: &'a [BlockId],
    /// Whether the logits of the last token are wanted.
    pub wants_logits: bool,
}

/// What an engine asks and tells between the layers of a forward pass.
pub trait StepWatch {
    /// Layer `layer` (from 0) has written the KV of every live chunk.
    fn layer_done(&mut self, layer: usize);
    /// Whether a chunk of the pass is still wanted. Asked between layers: once it
    /// answers false the engine drops that chunk's rows and returns no logits for it.
    fn is_live(&self, seq: SeqId) -> bool;
}

/// Result of one forward pass.
#[derive(Debug, Clone, Default)]
pub struct StepOutput {
    /// For each chunk, in order: logits of its last token, `vocab_size` values. `None` where
    /// they were not wanted or the chunk was dropped between layers.
    pub logits: Vec<Option<Vec<f32>>>,
    /// Tokens whose KV was computed to the last layer. The engine's own counter: tests compare
    /// it with what the scheduler believes.
    pub computed_tokens: u64,
}

/// Why an engine could not run a pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A token id at or above the vocabulary's size.
    #[error("token id {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The offending id.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The KV that the pass reads is not what the engine wrote for these tokens (`sim` verifies).
    #[error("KV of position {position} is not the KV of its tokens: {detail}")]
    CorruptKv {
        /// First position that does not verify.
        position: usize,
        /// What was found.
        detail: String,
    },
    /// Anything else; the engine is unusable afterwards.
    #[error("engine failed: {0}")]
    Failed(String),
}

/// The shape of one token's KV, and of a block of them.
///
/// Layout: `[block][layer][k|v][token][kv_head][head_dim]` of f32: a block of all layers is one
/// contiguous range, one layer of it one contiguous piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Transformer layers.
    pub layers: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Tokens per block.
    pub block_size: usize,
}

impl KvGeometry {
    /// f32 elements of K (or of V) of one token in one layer.
    pub fn row(&self) -> usize {
        self.kv_heads * self.head_dim
    }
    /// Bytes of one token in all layers, K and V.
    pub fn token_bytes(&self) -> usize {
        self.layers * 2 * self.row() * size_of::<f32>()
    }
    /// Bytes of one layer of one block, K and V.
    pub fn layer_bytes(&self) -> usize {
        2 * self.block_size * self.row() * size_of::<f32>()
    }
    /// Bytes of one block, all layers.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.layer_bytes()
    }
}

/// What an engine says about the model it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// Digest of the weights (BLAKE3-256 of the model file for `llama`): the KV identity.
    pub model_digest: [u8; 32],
    /// Name of the model as its file gives it.
    pub name: String,
    /// Size of the vocabulary: length of a logits vector.
    pub vocab_size: usize,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// Shape of the KV.
    pub kv: KvGeometry,
    /// Rotary base and scaling, as text, for the compatibility key.
    pub rope: String,
    /// Identity of the arithmetic: two engines with equal weights and equal kernel identity
    /// compute bitwise equal KV.
    pub kernel: String,
    /// Tokens that end a generation unless the request ignores them.
    pub eos_token_ids: Vec<u32>,
    /// Begin-of-sequence token, if the model has one.
    pub bos_token_id: Option<u32>,
}

/// An engine: turns tokens and cached KV into KV and logits.
///
/// An implementation is batch-invariant: the KV and the logits of a token are bitwise the same
/// whatever else is in the pass and however its sequence was cut into chunks.
pub trait Engine: Send {
    /// The model behind this engine.
    fn spec(&self) -> &ModelSpec;

    /// Runs one pass over `chunks`, writing their KV into `kv` and reading that of earlier positions.
    ///
    /// # Errors
    /// [`EngineError`]; nothing is returned for any chunk then.
    fn forward(
        &mut self,
        chunks: &[Chunk<'_>],
        kv: &KvMemory,
        watch: &mut dyn StepWatch,
    ) -> Result<StepOutput, EngineError>;
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("spec", self.spec()).finish()
    }
}

/// What computes tokens behind the contract: the engine of this process with its scheduler, or an engine of somebody else with an adapter.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The id of the present incarnation.
    fn instance(&self) -> watch::Receiver<InstanceId>;

    /// Its one rank, in the present incarnation.
    fn rank(&self) -> WorkerRank {
        WorkerRank::first(*self.instance().borrow())
    }

    /// Its time at a point of the process's clock.
    fn time_at(&self, at: Instant) -> Time;

    /// Takes a request or refuses it, at once. Its events come through the ticket; dropping that cancels it.
    ///
    /// # Errors
    /// The refusal; nothing is left behind then.
    fn submit(self: Arc<Self>, job: Job) -> Result<Ticket, Refusal>;

    /// Ends these choices of the request of a reservation, if it runs.
    fn cancel_choices(&self, reservation: ReservationKey, choices: &[u32]);

    /// A load report for a subscriber that holds `cursor`.
    fn report(&self, cursor: Option<SettledCursor>) -> LoadReport;

    /// Counters since the start of the process.
    fn counters(&self) -> Counters;

    /// Changes whenever the load may have.
    fn changed(&self) -> watch::Receiver<u64>;

    /// Reads the log of KV events; batches that this cuts are announced to other readers.
    fn with_kv_events(&self, f: &mut dyn FnMut(&mut KvEvents, Time));

    /// Number of the last batch of KV events.
    fn kv_batch(&self) -> watch::Receiver<u64>;

    /// Why it is unusable, once it is.
    fn failed(&self) -> watch::Receiver<Option<String>>;

    /// The present incarnation has been announced gone: it goes on as `instance`, and every unfinished choice ends with MIGRATE.
    fn begin_anew(&self, instance: InstanceId);

    /// Refuses new requests from now on.
    fn drain(&self);

    /// Ends every unfinished choice with MIGRATE.
    fn migrate_all(&self);

    /// Ends what computes.
    fn stop(&self);
}

/// Resolves when `worker` is not the present incarnation.
pub async fn fenced(backend: &dyn Backend, worker: WorkerRank) {
    if backend.instance().wait_for(|id| *id != worker.instance).await.is_err() {
        // Nothing will ever change again.
        std::future::pending::<()>().await;
    }
}

/// The KV event log as a publisher reads it. What is read belongs to one incarnation: of another one there is nothing.
pub trait KvLog: Send + Sync + 'static {
    /// The present incarnation.
    fn rank(&self) -> WorkerRank;
    /// Resolves when `me` is not the present incarnation.
    fn fenced(&self, me: WorkerRank) -> impl Future<Output = ()> + Send;
    /// Which batches of `me` it has.
    fn range(&self, me: WorkerRank) -> Option<LogRange>;
    /// A batch of `me`, while it is kept.
    fn batch(&self, me: WorkerRank, number: u64) -> Option<Arc<KvBatch>>;
    /// The whole set of `me` at batch 1 or later; cuts what is pending.
    fn snapshot(&self, me: WorkerRank) -> Option<KvSnapshot>;
    /// Changes when there is a new batch.
    fn announced(&self) -> watch::Receiver<u64>;
    /// Now, on the log's clock.
    fn now(&self) -> Time;
}
