//! What the scheduler wants done or told.

use std::ops::Range;

use crate::domain::ids::{BlockId, RequestId, ReservationKey, WindowIndex};
use crate::domain::report::Settlement;
use crate::domain::request::{Failure, FinishReason, Usage};
use crate::domain::sampled::Sampled;

/// One thing for the driver to do or to tell, in the order in which they happened.
///
/// Every accepted request ends with exactly one of [`Finished`](Self::Finished) and
/// [`Failed`](Self::Failed); before `Finished` each of its choices has ended, by a
/// [`Token`](Self::Token) with `finish` or by a [`ChoiceEnded`](Self::ChoiceEnded).
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// A reservation changed its state; the next load report says so too.
    Settled {
        /// The reservation.
        key: ReservationKey,
        /// Its new state.
        settlement: Settlement,
    },
    /// A new token of a choice.
    Token {
        /// The request.
        request: RequestId,
        /// The choice's index.
        choice: u32,
        /// Index of the token in the choice's generated tokens, from 0; tokens of earlier workers count.
        position: u32,
        /// The token.
        sampled: Sampled,
        /// Set when the choice ends with this token.
        finish: Option<FinishReason>,
    },
    /// A choice ended without a new token.
    ChoiceEnded {
        /// The request.
        request: RequestId,
        /// The choice's index.
        choice: u32,
        /// Why.
        finish: FinishReason,
    },
    /// Every choice has ended.
    Finished {
        /// The request.
        request: RequestId,
        /// What it used.
        usage: Usage,
    },
    /// The request failed as a whole; choices that had not ended never will.
    Failed {
        /// The request.
        request: RequestId,
        /// Why.
        failure: Failure,
        /// What it used.
        usage: Usage,
    },
    /// Landing: capacity is promised; ask the prefill worker for tokens `from_token..prompt_len`.
    LandingAdmitted {
        /// The request.
        request: RequestId,
        /// First token without KV here; a multiple of the block size.
        from_token: usize,
        /// Tokens of the sequence: the end of the missing range.
        prompt_len: usize,
    },
    /// Landing: these blocks may be written by the transfer.
    Granted {
        /// The request.
        request: RequestId,
        /// The window; windows are granted in order.
        window: WindowIndex,
        /// Tokens of the sequence that the window holds; starts at a block boundary.
        tokens: Range<usize>,
        /// Destination blocks, in token order.
        blocks: Vec<BlockId>,
    },
    /// Landing: the transfer is not wanted any more; stop it and tell the prefill worker.
    LandingAbort {
        /// The request.
        request: RequestId,
        /// Blocks are in quarantine until `quarantine_released` says that no write can still arrive.
        quarantined: bool,
    },
    /// Source: admitted (Begin); the KV of tokens `0..computed_to` is there already.
    SourceAdmitted {
        /// The request.
        request: RequestId,
        /// Tokens whose KV is complete, from 0.
        computed_to: usize,
        /// Their blocks.
        blocks: Vec<BlockId>,
    },
    /// Source: more KV is complete, in all layers.
    SourceProgress {
        /// The request.
        request: RequestId,
        /// Tokens whose KV is complete, from 0.
        computed_to: usize,
        /// Their blocks; a prefix of it is what was said before.
        blocks: Vec<BlockId>,
    },
    /// Source: the first token of each choice. The KV stays pinned until `source_released`.
    FirstTokens {
        /// The request.
        request: RequestId,
        /// Per choice index its first token; a choice whose sampling failed is absent.
        tokens: Vec<(u32, Sampled)>,
    },
}
