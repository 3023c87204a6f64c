//! A sequence: tokens, the blocks of their KV, and how far they are computed.

use std::ops::Range;
use std::sync::Arc;

use armature_kv_hash::SequenceHasher;

use super::rank::Rank;
use crate::domain::ids::{BlockId, RequestId, SeqId};
use crate::domain::kv_events::SequenceHash;

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// In the waiting queue, without blocks.
    Waiting,
    /// Admitted; its KV comes from a prefill worker.
    Landing,
    /// Admitted; takes part in steps.
    Running,
    /// A computed prompt, pinned for a decode worker.
    Held,
    /// Over; kept only because the step in flight uses its blocks.
    Ended,
}

/// Tokens of one choice, or of several that have generated nothing yet and share the prompt.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) request: RequestId,
    pub(super) rank: Rank,
    pub(super) phase: Phase,
    /// Choices that are sampled from the last token's logits; more than one only while nothing is generated.
    pub(super) choices: Vec<u32>,
    pub(super) prompt: Arc<[u32]>,
    pub(super) generated: Vec<u32>,
    /// Blocks of positions `0..`, in order; each held once by this sequence.
    pub(super) table: Vec<BlockId>,
    /// Blocks promised and not yet in the table.
    pub(super) promised: usize,
    /// Tokens whose KV is complete.
    pub(super) computed: usize,
    /// Leading blocks of the table that are entries of the prefix cache.
    pub(super) cached: usize,
    /// False until the transfer that wrote the blocks is committed.
    pub(super) cacheable: bool,
    /// Whether the step in flight reads or writes its blocks.
    pub(super) in_flight: bool,
    /// Prompt tokens that the cache held on arrival: an estimate for the load report.
    pub(super) expected_cached: usize,
    hasher: SequenceHasher,
    hashes: Vec<SequenceHash>,
}

impl Sequence {
    pub(super) fn new(
        id: SeqId,
        request: RequestId,
        rank: Rank,
        choices: Vec<u32>,
        prompt: Arc<[u32]>,
        generated: Vec<u32>,
        hasher: SequenceHasher,
    ) -> Self {
        Self {
            id,
            request,
            rank,
            phase: Phase::Waiting,
            choices,
            prompt,
            generated,
            table: Vec::new(),
            promised: 0,
            computed: 0,
            cached: 0,
            cacheable: true,
            in_flight: false,
            expected_cached: 0,
            hasher,
            hashes: Vec::new(),
        }
    }

    /// Tokens, generated ones included.
    pub(super) fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// Tokens without KV.
    pub(super) fn uncomputed(&self) -> usize {
        self.len() - self.computed
    }

    /// Whether the next step computes just the token that was generated last.
    pub(super) fn decodes(&self) -> bool {
        self.uncomputed() == 1 && !self.generated.is_empty()
    }

    pub(super) fn tokens(&self, range: Range<usize>) -> Vec<u32> {
        let split = self.prompt.len();
        let mut tokens = Vec::with_capacity(range.len());
        tokens.extend_from_slice(&self.prompt[range.start.min(split)..range.end.min(split)]);
        tokens.extend_from_slice(
            &self.generated[range.start.saturating_sub(split)..range.end.saturating_sub(split)],
        );
        tokens
    }

    pub(super) fn all_tokens(&self) -> impl Iterator<Item = u32> {
        self.prompt.iter().chain(&self.generated).copied()
    }

    /// Most blocks of a prefix that may be reused: at least the last token is computed here, for its logits.
    pub(super) fn reusable_blocks(&self, block_size: usize) -> usize {
        self.len().saturating_sub(1) / block_size
    }

    /// Sequence hash of full block `index`.
    pub(super) fn hash(&mut self, index: usize, block_size: usize) -> SequenceHash {
        while self.hashes.len() <= index {
            let start = self.hashes.len() * block_size;
            let tokens = self.tokens(start..start + block_size);
            self.hashes.push(SequenceHash(self.hasher.push_block(&tokens, &[])));
        }
        self.hashes[index]
    }

    /// The copy of this sequence that goes on as another choice: same tokens, no blocks.
    pub(super) fn fork(&self, id: SeqId, choice: u32, generated: Vec<u32>) -> Self {
        let full_prompt_hashes = self.hashes.clone();
        Self {
            id,
            rank: self.rank.of_choice(choice),
            choices: vec![choice],
            generated,
            table: Vec::new(),
            promised: 0,
            computed: 0,
            cached: 0,
            in_flight: false,
            hashes: full_prompt_hashes,
            prompt: Arc::clone(&self.prompt),
            hasher: self.hasher.clone(),
            ..*self
        }
    }
}
