//! What a source may send, what is ready, what has been sent. Pure.

use std::collections::VecDeque;

use crate::domain::ids::BlockId;
use crate::ports::KvGeometry;
use crate::transfer::cells::CellSet;
use crate::transfer::ids::WindowIndex;
use crate::transfer::message::{Grant, TransportKind};
use crate::transfer::range::{Extent, LayerRange, TokenRange};
use crate::transfer::reason::{Failure, Violation};
use crate::transfer::segments::piece_bytes;

/// Some layers of some tokens, and the blocks that hold them.
#[derive(Debug, Clone)]
pub(crate) struct ReadyPiece {
    pub(crate) layers: LayerRange,
    pub(crate) extent: Extent,
}

/// A ready piece inside one window: what goes out next.
#[derive(Debug, Clone)]
pub(crate) struct OutPiece {
    pub(crate) window: WindowIndex,
    pub(crate) ready: ReadyPiece,
}

impl OutPiece {
    pub(crate) fn cells(&self) -> u64 {
        u64::from(self.ready.layers.len()) * u64::from(self.ready.extent.tokens().len())
    }
}

#[derive(Debug)]
pub(crate) struct SourceLedger {
    geometry: KvGeometry,
    pool_blocks: usize,
    tokens: TokenRange,
    transport: Option<TransportKind>,
    windows: Vec<TokenRange>,
    granted: CellSet,
    ready: CellSet,
    /// Ready, not granted. This and `outbox` are bounded by layers x tokens of the transfer, for each
    /// cell is ready at most once; in practice by chunks x layers x windows.
    pending: Vec<ReadyPiece>,
    /// Ready and granted.
    outbox: VecDeque<OutPiece>,
    taken: u64,
    moved: u64,
    /// `Ok` is: acknowledged by D.
    end: Option<Result<(), Failure>>,
}

impl SourceLedger {
    pub(crate) fn new(geometry: KvGeometry, pool_blocks: usize, tokens: TokenRange) -> Self {
        Self {
            geometry,
            pool_blocks,
            tokens,
            transport: None,
            windows: Vec::new(),
            granted: CellSet::new(1),
            ready: CellSet::new(geometry.layers as u32),
            pending: Vec::new(),
            outbox: VecDeque::new(),
            taken: 0,
            moved: 0,
            end: None,
        }
    }

    pub(crate) fn end(&self) -> Option<Result<(), Failure>> {
        self.end
    }

    pub(crate) fn check_open(&self) -> Result<(), Failure> {
        match self.end {
            None => Ok(()),
            Some(end) => Err(end.err().unwrap_or(Failure::Complete)),
        }
    }

    pub(crate) fn transport(&self) -> Option<TransportKind> {
        self.transport
    }

    fn all(&self) -> u64 {
        self.geometry.layers as u64 * u64::from(self.tokens.len())
    }

    /// Whether everything has left.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved == self.all()
    }

    /// Takes a grant; the first settles the transport.
    pub(crate) fn grant(&mut self, grant: Grant) -> Result<(), Failure> {
        self.check_open()?;
        let in_order = grant.window.0 as usize == self.windows.len();
        let same = self.transport.is_none_or(|transport| transport == grant.transport);
        if !in_order || !same || grant.tokens.is_empty() || !self.tokens.contains(grant.tokens) {
            return Err(Violation::BadGrant.into());
        }
        if !self.granted.insert(LayerRange::new(0, 1), grant.tokens) {
            return Err(Violation::BadGrant.into());
        }
        self.transport = Some(grant.transport);
        self.windows.push(grant.tokens);
        for piece in std::mem::take(&mut self.pending) {
            self.sort(piece, self.windows.len() - 1);
        }
        Ok(())
    }

    /// Takes progress. What lies outside the offered tokens is ignored.
    pub(crate) fn ready(&mut self, layers: LayerRange, extent: &Extent) -> Result<(), Failure> {
        self.check_open()?;
        let model = LayerRange::new(0, self.geometry.layers as u32);
        if layers.is_empty() || !model.contains(layers) {
            return Err(Violation::LayersOutsideModel.into());
        }
        if extent.blocks().iter().any(|block: &BlockId| block.index() >= self.pool_blocks) {
            return Err(Violation::BadBlocks.into());
        }
        let Some(extent) = extent.clip(self.tokens) else { return Ok(()) };
        if !self.ready.insert(layers, extent.tokens()) {
            return Err(Violation::RepeatedPiece.into());
        }
        self.sort(ReadyPiece { layers, extent }, 0);
        Ok(())
    }

    /// Moves the parts of `piece` that windows from `first_window` on allow to the outbox, the rest
    /// to the pending.
    fn sort(&mut self, piece: ReadyPiece, first_window: usize) {
        let ReadyPiece { layers, extent } = piece;
        let mut inside: Vec<TokenRange> = Vec::new();
        for (nth, window) in self.windows.iter().enumerate().skip(first_window) {
            if let Some(part) = extent.clip(*window) {
                inside.push(part.tokens());
                let ready = ReadyPiece { layers, extent: part };
                self.outbox.push_back(OutPiece { window: WindowIndex(nth as u32), ready });
            }
        }
        inside.sort_unstable_by_key(|tokens| tokens.start);
        let mut from = extent.tokens().start;
        let end = TokenRange::new(extent.tokens().end, extent.tokens().end);
        for taken in inside.into_iter().chain([end]) {
            if let Some(rest) = extent.clip(TokenRange::new(from, taken.start)) {
                self.pending.push(ReadyPiece { layers, extent: rest });
            }
            from = taken.end;
        }
    }

    /// The next piece to leave, of at most `max_bytes` where that is more than one token of one layer.
    pub(crate) fn take(&mut self, max_bytes: u64) -> Option<OutPiece> {
        if self.end.is_some() {
            return None;
        }
        let mut piece = self.outbox.pop_front()?;
        while let Some(rest) = split(&self.geometry, &mut piece, max_bytes) {
            self.outbox.push_front(rest);
        }
        self.taken += piece.cells();
        Some(piece)
    }

    /// A taken piece has left; true when it was the last one of the transfer.
    pub(crate) fn moved(&mut self, cells: u64) -> bool {
        self.moved += cells;
        self.end.is_none() && self.has_moved()
    }

    /// Everything taken has left, says D, and that is everything.
    pub(crate) fn moved_all(&mut self) -> Result<(), Failure> {
        if self.taken != self.all() {
            return Err(Violation::EarlyAck.into());
        }
        self.moved = self.taken;
        Ok(())
    }

    /// No more progress will come.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        self.check_open()?;
        if self.ready.len() == self.all() { Ok(()) } else { Err(Failure::Incomplete) }
    }

    /// D's Ack: confirmed iff the source has been pinned until now. The last bytes may still be
    /// noted as under way, for D can be faster than our own bookkeeping.
    pub(crate) fn acknowledge(&mut self) -> Result<(), Failure> {
        match self.end {
            Some(Ok(())) => return Ok(()),
            Some(Err(failure)) => return Err(failure),
            None => {}
        }
        if self.taken != self.all() {
            return Err(Violation::EarlyAck.into());
        }
        self.end = Some(Ok(()));
        Ok(())
    }

    /// Ends the transfer; false when it was over.
    pub(crate) fn fail(&mut self, failure: Failure) -> bool {
        if self.end.is_some() {
            return false;
        }
        self.end = Some(Err(failure));
        self.pending = Vec::new();
        self.outbox = VecDeque::new();
        true
    }
}

/// Shortens `piece` to `max_bytes` and returns the rest: whole blocks of all its layers while one
/// fits, else single layers of tokens.
fn split(geometry: &KvGeometry, piece: &mut OutPiece, max_bytes: u64) -> Option<OutPiece> {
    let layers = piece.ready.layers;
    let tokens = piece.ready.extent.tokens();
    if piece_bytes(geometry, layers.len(), tokens.len()) <= max_bytes {
        return None;
    }
    let block = geometry.block_size as u32;
    let token_bytes = piece_bytes(geometry, layers.len(), 1);
    let fitting = u32::try_from(max_bytes / token_bytes).unwrap_or(u32::MAX);
    let whole_blocks_end = (tokens.start.saturating_add(fitting)) / block * block;
    let rest_of = |layers: LayerRange, tokens: TokenRange| {
        let extent = piece.ready.extent.clip(tokens)?;
        Some(OutPiece { window: piece.window, ready: ReadyPiece { layers, extent } })
    };
    let (cut_layers, cut_tokens, rest) = if whole_blocks_end > tokens.start {
        let rest = rest_of(layers, TokenRange::new(whole_blocks_end, tokens.end));
        (layers, TokenRange::new(tokens.start, whole_blocks_end), rest)
    } else if layers.len() > 1 {
        // Not one block of all layers fits: first that block alone, then one of its layers alone.
        let block_end = ((tokens.start / block + 1) * block).min(tokens.end);
        if block_end < tokens.end {
            let rest = rest_of(layers, TokenRange::new(block_end, tokens.end));
            (layers, TokenRange::new(tokens.start, block_end), rest)
        } else {
            let fitting = (max_bytes / piece_bytes(geometry, 1, tokens.len())).max(1) as u32;
            let middle = layers.start + fitting.min(layers.len() - 1);
            let rest = rest_of(LayerRange::new(middle, layers.end), tokens);
            (LayerRange::new(layers.start, middle), tokens, rest)
        }
    } else {
        let middle = tokens.start + fitting.clamp(1, tokens.len());
        (layers, TokenRange::new(tokens.start, middle), rest_of(layers, TokenRange::new(middle, tokens.end)))
    };
    let extent = piece.ready.extent.clip(cut_tokens)?;
    piece.ready = ReadyPiece { layers: cut_layers, extent };
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transfer::ids::TransferId;

    const GEOMETRY: KvGeometry = KvGeometry { layers: 3, kv_heads: 1, head_dim: 2, block_size: 4 };
    const CELL: u64 = 16;

    fn grant(window: u32, tokens: TokenRange) -> Grant {
        let transport = TransportKind::Tcp;
        Grant { transfer: TransferId(0), window: WindowIndex(window), tokens, transport }
    }

    fn extent(tokens: TokenRange) -> Extent {
        let blocks = tokens.start / 4..tokens.end.div_ceil(4);
        Extent::new(tokens, blocks.map(BlockId).collect(), 4).unwrap()
    }

    proptest! {
        /// Cells 3..40 cut at random into windows and pieces, in random order: whatever leaves is ready,
        /// granted, small enough and in the right blocks, and in the end every cell has left once.
        #[test]
        fn every_cell_leaves_once_inside_its_window(
            windows in Just(vec![(3u32, 9u32), (9, 10), (10, 26), (26, 40)]).prop_shuffle(),
            pieces in Just(
                [(0u32, 1u32), (1, 3)].iter().flat_map(|layers| {
                    [(0u32, 5u32), (5, 18), (18, 33), (33, 44)].map(|tokens| (*layers, tokens))
                }).collect::<Vec<_>>(),
            ).prop_shuffle(),
            order in prop::collection::vec(any::<bool>(), 12),
            max_cells in 1u64..40,
        ) {
            let mut ledger = SourceLedger::new(GEOMETRY, 11, TokenRange::new(3, 40));
            let (mut windows, mut pieces) = (windows.into_iter().zip(0..), pieces.into_iter());
            let mut left = CellSet::new(3);
            let mut granted = Vec::new();
            for grants_first in order.into_iter().chain([true; 4]).chain([false; 8]) {
                if grants_first {
                    if let Some(((start, end), nth)) = windows.next() {
                        granted.push(TokenRange::new(start, end));
                        ledger.grant(grant(nth, TokenRange::new(start, end))).unwrap();
                    }
                } else if let Some(((first, last), (start, end))) = pieces.next() {
                    ledger.ready(LayerRange::new(first, last), &extent(TokenRange::new(start, end))).unwrap();
                }
                while let Some(out) = ledger.take(max_cells * CELL) {
                    let tokens = out.ready.extent.tokens();
                    prop_assert!(granted[out.window.0 as usize].contains(tokens));
                    prop_assert!(out.cells() <= max_cells.max(1));
                    prop_assert_eq!(&out.ready.extent, &extent(tokens));
                    prop_assert!(left.insert(out.ready.layers, tokens), "a cell left twice");
                    ledger.moved(out.cells());
                }
            }
            prop_assert_eq!(left.len(), 3 * 37);
            prop_assert!(ledger.has_moved() && ledger.finish().is_ok());
            prop_assert_eq!(ledger.acknowledge(), Ok(()));
        }
    }

    #[test]
    fn an_ack_is_confirmed_while_pinned_and_then_for_ever() {
        let mut ledger = SourceLedger::new(GEOMETRY, 11, TokenRange::new(0, 4));
        ledger.grant(grant(0, TokenRange::new(0, 4))).unwrap();
        ledger.ready(LayerRange::new(0, 3), &extent(TokenRange::new(0, 4))).unwrap();
        assert_eq!(ledger.acknowledge(), Err(Violation::EarlyAck.into()));
        let out = ledger.take(u64::MAX).unwrap();
        // D may have everything before we have noted that the last write is through.
        assert_eq!(ledger.acknowledge(), Ok(()));
        assert!(!ledger.moved(out.cells()), "nothing is told after the end");
        assert!(!ledger.fail(Failure::Deadline));
        assert_eq!(ledger.acknowledge(), Ok(()));
    }
}
