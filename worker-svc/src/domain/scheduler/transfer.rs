//! The states of a landing transfer.
//!
//! ```text
//! per window     PROMISED --grant--> GRANTED --started--> LANDING --landed--> LANDED
//!                                       +-----------------landed--------------^
//! per transfer   PROMISED --begin--> OPEN --complete--> COMPLETE --committed--> COMMITTED (gone)
//!                any --abort--> ABORTING: windows that may still be written -> QUARANTINED -> FREE
//! ```
//!
//! `PROMISED` windows are only a count: tokens `granted_to..to` of the transfer. ABORTING ends at once in
//! this model: the transfer is gone and the blocks it may still write are in the scheduler's quarantine.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::domain::ids::{BlockId, WindowIndex};

/// Why an input about a transfer was not taken. Races with a cancellation are normal; nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LandingError {
    /// No such landing request; it may have ended.
    #[error("no such landing request")]
    Unknown,
    /// The transfer is not in a state in which this can happen.
    #[error("transfer is {0:?}")]
    WrongPhase(TransferPhase),
    /// The window was never granted, or has landed before.
    #[error("window {} is not open", .0.0)]
    WrongWindow(WindowIndex),
    /// Windows are missing.
    #[error("{landed} of {tokens} tokens have landed")]
    Incomplete {
        /// Tokens that have landed.
        landed: usize,
        /// Tokens of the transfer.
        tokens: usize,
    },
}

/// State of a whole transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferPhase {
    /// Capacity is promised; the prefill worker has not begun.
    Promised,
    /// Windows are granted as budget allows.
    Open,
    /// All KV is present; the sequence runs.
    Complete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowPhase {
    Granted,
    Landing,
    Landed,
}

#[derive(Debug)]
struct Window {
    blocks: Vec<BlockId>,
    tokens: Range<usize>,
    phase: WindowPhase,
}

/// A transfer of the KV of tokens `from..to` of one sequence.
#[derive(Debug)]
pub(super) struct Transfer {
    phase: TransferPhase,
    pub(super) from: usize,
    pub(super) to: usize,
    granted_to: usize,
    windows: Vec<Window>,
    /// First token per choice, as far as the prefill worker has sampled them and they did not end the choice.
    pub(super) first_tokens: BTreeMap<u32, u32>,
}

impl Transfer {
    pub(super) fn promised(from: usize, to: usize) -> Self {
        Self {
            phase: TransferPhase::Promised,
            from,
            to,
            granted_to: from,
            windows: Vec::new(),
            first_tokens: BTreeMap::new(),
        }
    }

    pub(super) fn phase(&self) -> TransferPhase {
        self.phase
    }

    pub(super) fn begin(&mut self) -> Result<(), LandingError> {
        self.expect(TransferPhase::Promised)?;
        self.phase = TransferPhase::Open;
        Ok(())
    }

    pub(super) fn expect(&self, phase: TransferPhase) -> Result<(), LandingError> {
        if self.phase == phase { Ok(()) } else { Err(LandingError::WrongPhase(self.phase)) }
    }

    /// Tokens not granted yet.
    pub(super) fn ungranted(&self) -> Range<usize> {
        self.granted_to..self.to
    }

    /// The next window: tokens up to `end`, in `blocks`.
    pub(super) fn grant(&mut self, end: usize, blocks: Vec<BlockId>) -> (WindowIndex, Range<usize>) {
        let tokens = self.granted_to..end.min(self.to);
        self.granted_to = tokens.end;
        self.windows.push(Window { blocks, tokens: tokens.clone(), phase: WindowPhase::Granted });
        (WindowIndex(self.windows.len() as u32 - 1), tokens)
    }

    fn window(&mut self, window: WindowIndex) -> Result<&mut Window, LandingError> {
        self.expect(TransferPhase::Open)?;
        self.windows
            .get_mut(window.0 as usize)
            .filter(|open| open.phase != WindowPhase::Landed)
            .ok_or(LandingError::WrongWindow(window))
    }

    /// The first piece of a window arrives.
    pub(super) fn started(&mut self, window: WindowIndex) -> Result<(), LandingError> {
        self.window(window)?.phase = WindowPhase::Landing;
        Ok(())
    }

    /// Every piece of a window has arrived: its blocks will not be written again.
    pub(super) fn landed(&mut self, window: WindowIndex) -> Result<&[BlockId], LandingError> {
        let landed = self.window(window)?;
        landed.phase = WindowPhase::Landed;
        Ok(&landed.blocks)
    }

    pub(super) fn complete(&mut self) -> Result<(), LandingError> {
        self.expect(TransferPhase::Open)?;
        let landed: usize = self
            .windows
            .iter()
            .filter(|window| window.phase == WindowPhase::Landed)
            .map(|window| window.tokens.len())
            .sum();
        if landed < self.to - self.from {
            return Err(LandingError::Incomplete { landed, tokens: self.to - self.from });
        }
        self.phase = TransferPhase::Complete;
        Ok(())
    }

    /// Blocks that may still be written.
    pub(super) fn writable(&self) -> impl Iterator<Item = BlockId> {
        self.windows
            .iter()
            .filter(|window| window.phase != WindowPhase::Landed)
            .flat_map(|window| window.blocks.iter().copied())
    }
}
