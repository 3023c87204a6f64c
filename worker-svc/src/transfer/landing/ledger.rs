//! What a landing has granted, what is on its way, what has landed. Pure.

use std::collections::{HashMap, VecDeque};

use crate::domain::ids::BlockId;
use crate::ports::KvGeometry;
use crate::transfer::cells::CellSet;
use crate::transfer::ids::WindowIndex;
use crate::transfer::message::{Chosen, Commit, LandingEvent, TransportKind};
use crate::transfer::range::{Extent, LayerRange, TokenRange};
use crate::transfer::reason::{Failure, GrantError, Violation};

/// Some layers of some tokens of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) window: WindowIndex,
    pub(crate) layers: LayerRange,
    pub(crate) tokens: TokenRange,
}

impl Piece {
    pub(crate) fn cells(&self) -> u64 {
        u64::from(self.layers.len()) * u64::from(self.tokens.len())
    }
}

#[derive(Debug)]
struct Window {
    extent: Extent,
    landed: u64,
}

#[derive(Debug)]
pub(crate) struct LandingLedger {
    geometry: KvGeometry,
    pool_blocks: usize,
    tokens: TokenRange,
    windows: Vec<Window>,
    /// Which block of the sequence each granted block of the pool is.
    places: HashMap<BlockId, u32>,
    /// Granted tokens, as a set with one layer.
    granted: CellSet,
    /// Cells on their way or landed.
    claimed: CellSet,
    landed: u64,
    chosen: Option<Chosen>,
    connected: bool,
    end: Option<Result<(), Failure>>,
    /// At most one per window and a last one.
    events: VecDeque<LandingEvent>,
}

impl LandingLedger {
    pub(crate) fn new(geometry: KvGeometry, pool_blocks: usize, tokens: TokenRange) -> Self {
        Self {
            geometry,
            pool_blocks,
            tokens,
            windows: Vec::new(),
            places: HashMap::new(),
            granted: CellSet::new(1),
            claimed: CellSet::new(geometry.layers as u32),
            landed: 0,
            chosen: None,
            connected: false,
            end: None,
            events: VecDeque::new(),
        }
    }

    /// `None` while open, then how it ended.
    pub(crate) fn end(&self) -> Option<Result<(), Failure>> {
        self.end
    }

    /// `Complete` or the failure, once over.
    fn over(&self) -> Option<Failure> {
        self.end.map(|end| end.err().unwrap_or(Failure::Complete))
    }

    pub(crate) fn check_open(&self) -> Result<(), Failure> {
        self.over().map_or(Ok(()), Err)
    }

    /// The settled transport.
    pub(crate) fn chosen(&self) -> Option<Chosen> {
        self.chosen
    }

    /// Settles the transport; a later call changes nothing.
    pub(crate) fn settle(&mut self, chosen: Chosen) -> Result<Chosen, Failure> {
        self.check_open()?;
        Ok(*self.chosen.get_or_insert(chosen))
    }

    /// Takes the place of the one data connection.
    pub(crate) fn connect(&mut self) -> bool {
        let tcp = self.chosen.is_some_and(|chosen| chosen.transport == TransportKind::Tcp);
        self.end.is_none() && tcp && !std::mem::replace(&mut self.connected, true)
    }

    pub(crate) fn grant(
        &mut self,
        tokens: TokenRange,
        blocks: Vec<BlockId>,
    ) -> Result<(WindowIndex, TransportKind), GrantError> {
        if let Some(failure) = self.over() {
            return Err(GrantError::Over(failure));
        }
        let chosen = self.chosen.ok_or(GrantError::NotSettled)?;
        let block_size = self.geometry.block_size as u32;
        let extent = Extent::new(tokens, blocks, block_size)?;
        let first = tokens.start / block_size;
        let fits = |(nth, block): (u32, &BlockId)| {
            block.index() < self.pool_blocks
                && self.places.get(block).is_none_or(|place| *place == first + nth)
        };
        if !(0..).zip(extent.blocks()).all(fits) {
            return Err(GrantError::BadBlock);
        }
        let mut distinct = extent.blocks().to_vec();
        distinct.sort_unstable();
        if distinct.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(GrantError::BadBlock);
        }
        if !self.tokens.contains(tokens) || !self.granted.insert(LayerRange::new(0, 1), tokens) {
            return Err(GrantError::BadTokens(tokens));
        }
        self.places.extend(extent.blocks().iter().zip(first..).map(|(block, place)| (*block, place)));
        let window = WindowIndex(self.windows.len() as u32);
        self.windows.push(Window { extent, landed: 0 });
        Ok((window, chosen.transport))
    }

    /// Takes a piece that the peer announces, and names where it goes.
    pub(crate) fn claim(&mut self, piece: Piece) -> Result<Extent, Failure> {
        self.check_open()?;
        let unknown = Violation::WindowNotGranted(piece.window);
        let window = self.windows.get(piece.window.0 as usize).ok_or(unknown)?;
        let model = LayerRange::new(0, self.geometry.layers as u32);
        if piece.layers.is_empty() || !model.contains(piece.layers) {
            return Err(Violation::LayersOutsideModel.into());
        }
        let outside = Violation::TokensOutsideWindow(piece.tokens);
        if !window.extent.tokens().contains(piece.tokens) {
            return Err(outside.into());
        }
        let destination = window.extent.clip(piece.tokens).ok_or(outside)?;
        if !self.claimed.insert(piece.layers, piece.tokens) {
            return Err(Violation::RepeatedPiece.into());
        }
        Ok(destination)
    }

    /// A claimed piece is in the pool in full.
    pub(crate) fn landed(&mut self, piece: Piece) {
        if self.end.is_some() {
            return;
        }
        let layers = self.geometry.layers as u64;
        let window = &mut self.windows[piece.window.0 as usize];
        window.landed += piece.cells();
        self.landed += piece.cells();
        if window.landed == layers * u64::from(window.extent.tokens().len()) {
            self.events.push_back(LandingEvent::WindowLanded(piece.window));
        }
        if self.landed == layers * u64::from(self.tokens.len()) {
            let commit = match self.chosen.map(|chosen| chosen.transport) {
                Some(TransportKind::Shm) => Commit::AfterAckConfirmed,
                _ => Commit::Now,
            };
            self.events.push_back(LandingEvent::AllLanded(commit));
            self.end = Some(Ok(()));
        }
    }

    /// Ends the transfer; false when it was over.
    pub(crate) fn fail(&mut self, failure: Failure) -> bool {
        if self.end.is_some() {
            return false;
        }
        self.end = Some(Err(failure));
        self.events.push_back(LandingEvent::Failed(failure));
        true
    }

    pub(crate) fn next_event(&mut self) -> Option<LandingEvent> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const GEOMETRY: KvGeometry = KvGeometry { layers: 3, kv_heads: 1, head_dim: 2, block_size: 4 };

    fn settled(transport: TransportKind) -> LandingLedger {
        let mut ledger = LandingLedger::new(GEOMETRY, 8, TokenRange::new(2, 20));
        ledger.settle(Chosen { transport, shm_refused: None }).unwrap();
        ledger
    }

    proptest! {
        /// Random pieces against a set of (layer, token) pairs: taken iff all cells are granted to that
        /// window and new; the ends of windows and of the transfer are told exactly once.
        #[test]
        fn pieces_are_taken_by_the_rules_and_counted(
            pieces in prop::collection::vec((0u32..4, 0u32..4, 1u32..4, 0u32..22, 0u32..12), 0..60),
        ) {
            let mut ledger = settled(TransportKind::Tcp);
            let windows = [TokenRange::new(8, 20), TokenRange::new(2, 8)];
            ledger.grant(windows[0], vec![BlockId(5), BlockId(0), BlockId(2)]).unwrap();
            ledger.grant(windows[1], vec![BlockId(7), BlockId(1)]).unwrap();
            let mut cells: HashSet<(u32, u32)> = HashSet::new();
            let mut told = Vec::new();
            // Random ones, then all single cells, of which many are repeated.
            let rest = (0..3).flat_map(|l| (2..20).map(move |t| (u32::from(t < 8), l, 1, t, 1)));
            for (window, layer, layers, token, tokens) in pieces.into_iter().chain(rest) {
                let piece = Piece {
                    window: WindowIndex(window),
                    layers: LayerRange::new(layer, layer + layers),
                    tokens: TokenRange::new(token, token + tokens),
                };
                let members: Vec<_> = (layer..layer + layers)
                    .flat_map(|l| (token..token + tokens).map(move |t| (l, t))).collect();
                let fits = windows.get(window as usize).is_some_and(|w| w.contains(piece.tokens))
                    && layer + layers <= 3 && tokens > 0 && members.iter().all(|m| !cells.contains(m));
                if ledger.end().is_some() {
                    prop_assert_eq!(ledger.claim(piece), Err(Failure::Complete));
                    continue;
                }
                let claimed = ledger.claim(piece);
                prop_assert_eq!(claimed.is_ok(), fits, "{:?} {:?}", piece, claimed);
                if fits {
                    cells.extend(members);
                    ledger.landed(piece);
                }
                told.extend(std::iter::from_fn(|| ledger.next_event()));
            }
            prop_assert_eq!(told.len(), 3);
            prop_assert!(told.contains(&LandingEvent::WindowLanded(WindowIndex(0))));
            prop_assert!(told.contains(&LandingEvent::WindowLanded(WindowIndex(1))));
            prop_assert_eq!(told.last(), Some(&LandingEvent::AllLanded(Commit::Now)));
        }
    }

    #[test]
    fn a_claimed_piece_has_not_landed() {
        let mut ledger = settled(TransportKind::Shm);
        ledger.grant(TokenRange::new(2, 20), (0..5).map(BlockId).collect()).unwrap();
        let piece =
            Piece { window: WindowIndex(0), layers: LayerRange::new(0, 3), tokens: TokenRange::new(2, 20) };
        ledger.claim(piece).unwrap();
        assert_eq!(ledger.next_event(), None);
        assert!(ledger.fail(Failure::Deadline));
        ledger.landed(piece);
        assert_eq!(ledger.next_event(), Some(LandingEvent::Failed(Failure::Deadline)));
        assert_eq!(ledger.next_event(), None);
    }

    #[test]
    fn only_a_settled_tcp_landing_takes_a_connection_and_only_one() {
        assert!(!LandingLedger::new(GEOMETRY, 8, TokenRange::new(0, 4)).connect());
        assert!(!settled(TransportKind::Shm).connect());
        let mut ledger = settled(TransportKind::Tcp);
        assert!(ledger.connect() && !ledger.connect());
    }
}
