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
