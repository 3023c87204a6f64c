//! Two pools, two endpoints and a control stream between two sessions, in one process.

use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::BlockId;
use armature_worker::kv_memory::KvMemory;
use armature_worker::ports::KvGeometry;
use armature_worker::transfer::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::Instant;

pub(super) const LONG: Duration = Duration::from_secs(120);

/// Which transport a test runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Tcp,
    Shm,
}

pub(super) const WIRES: [Wire; 2] = [Wire::Tcp, Wire::Shm];

pub(super) struct Rig {
    pub(super) source_kv: Arc<KvMemory>,
    pub(super) landing_kv: Arc<KvMemory>,
    pub(super) source: HostSource,
    pub(super) landing: HostLanding,
    pub(super) sockets: TempDir,
    pub(super) transport: TransportKind,
}

impl Rig {
    pub(super) async fn new(wire: Wire, geometry: KvGeometry, blocks: usize, max_frame_bytes: u64) -> Self {
        let source_kv = Arc::new(KvMemory::new(geometry, blocks).unwrap());
        let landing_kv = Arc::new(KvMemory::new(geometry, blocks).unwrap());
        let mut noise = StdRng::seed_from_u64(7);
        for block in 0..blocks {
            noise.fill(source_kv.bytes_mut(BlockId(block as u32), 0..geometry.block_bytes()));
            noise.fill(landing_kv.bytes_mut(BlockId(block as u32), 0..geometry.block_bytes()));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let advertised = listener.local_addr().unwrap().to_string();
        let tcp = TcpLanding { listener, advertised };
        let sockets = tempfile::tempdir().unwrap();
        let (directory, boot_id) = (sockets.path().to_owned(), BootId::of_this_host().unwrap());
        let import = ShmLanding { directory: directory.clone(), boot_id: boot_id.clone() };
        let export = ShmExport { directory, boot_id, incarnation: Incarnation(0xfeed) };
        let transport = if wire == Wire::Shm { TransportKind::Shm } else { TransportKind::Tcp };
        let over_shm = wire == Wire::Shm;
        let landing = HostLanding::start(
            Arc::clone(&landing_kv),
            LandingOptions::default(),
            Some(tcp),
            over_shm.then_some(import),
        );
        let options = SourceOptions { max_frame_bytes, ..SourceOptions::default() };
        let source = HostSource::start(Arc::clone(&source_kv), options, over_shm.then_some(export)).unwrap();
        Self { source_kv, landing_kv, source, landing, sockets, transport }
    }

    pub(super) fn request(transfer: u128, tokens: TokenRange) -> LandingRequest {
        LandingRequest {
            transfer: TransferId(transfer),
            secret: TransferSecret::new([transfer as u8 ^ 0x5a; 16]),
            tokens,
            deadline: Instant::now() + LONG,
        }
    }

    /// Both sessions, with the transport settled.
    pub(super) async fn pair(&self, transfer: u128, tokens: TokenRange) -> (LandingSession, SourceSession) {
        let (offer, landing) = self.landing.open(Self::request(transfer, tokens)).unwrap();
        let (acceptance, source) = self.source.accept(offer, Instant::now() + LONG).unwrap();
        let chosen = landing.accepted(acceptance).await.unwrap();
        assert_eq!(chosen.transport, self.transport);
        (landing, source)
    }

    pub(super) fn snapshot(&self) -> Vec<u8> {
        let geometry = self.landing_kv.geometry();
        (0..self.landing_kv.blocks())
            .flat_map(|b| self.landing_kv.bytes(BlockId(b as u32), 0..geometry.block_bytes()).to_vec())
            .collect()
    }
}

/// A transfer's plan: block tables of the whole prompt on both sides, windows, order of progress.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) tokens: TokenRange,
    pub(super) source_table: Vec<BlockId>,
    pub(super) landing_table: Vec<BlockId>,
    pub(super) windows: Vec<TokenRange>,
    pub(super) progress: Vec<(LayerRange, TokenRange)>,
    pub(super) block_size: u32,
}

fn cut(rng: &mut StdRng, start: u32, end: u32, pieces: u32) -> Vec<(u32, u32)> {
    let mut marks: Vec<u32> = (1..pieces).map(|_| rng.random_range(start..=end)).collect();
    marks.extend([start, end]);
    marks.sort_unstable();
    marks.dedup();
    marks.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

impl Plan {
    /// A plan whose blocks are `source_blocks` and `landing_blocks` (at least as many as the prompt has).
    pub(super) fn random(
        rng: &mut StdRng,
        geometry: &KvGeometry,
        tokens: TokenRange,
        mut source_blocks: Vec<BlockId>,
        mut landing_blocks: Vec<BlockId>,
    ) -> Self {
        source_blocks.shuffle(rng);
        landing_blocks.shuffle(rng);
        let mut windows: Vec<TokenRange> =
            cut(rng, tokens.start, tokens.end, 5).into_iter().map(|(s, e)| TokenRange::new(s, e)).collect();
        windows.shuffle(rng);
        // P computes from position 0 on, D's own prefix included: chunk by chunk in time, each layer by layer.
        let mut progress = Vec::new();
        for (start, end) in cut(rng, 0, tokens.end, 4) {
            for (first, last) in cut(rng, 0, geometry.layers as u32, 3) {
                progress.push((LayerRange::new(first, last), TokenRange::new(start, end)));
            }
        }
        if rng.random_bool(0.5) {
            progress.shuffle(rng);
        }
        Self {
            tokens,
            source_table: source_blocks,
            landing_table: landing_blocks,
            windows,
            progress,
            block_size: geometry.block_size as u32,
        }
    }

    fn touched(&self, tokens: TokenRange) -> std::ops::Range<usize> {
        (tokens.start / self.block_size) as usize..tokens.end.div_ceil(self.block_size) as usize
    }

    pub(super) fn source_blocks(&self, tokens: TokenRange) -> Vec<BlockId> {
        self.source_table[self.touched(tokens)].to_vec()
    }

    pub(super) fn landing_blocks(&self, tokens: TokenRange) -> Vec<BlockId> {
        self.landing_table[self.touched(tokens)].to_vec()
    }

    /// What the landing pool must hold: `before`, with the plan's tokens from the source.
    pub(super) fn expected(&self, source: &KvMemory, before: &[u8]) -> Vec<u8> {
        let geometry = source.geometry();
        let row = geometry.row() * 4;
        let mut after = before.to_vec();
        for position in self.tokens.start..self.tokens.end {
            let (nth, slot) = ((position / self.block_size) as usize, (position % self.block_size) as usize);
            for half in 0..2 * geometry.layers {
                let at = half * geometry.layer_bytes() / 2 + slot * row;
                let to = source.block_offset(self.landing_table[nth]) + at;
                after[to..to + row].copy_from_slice(source.bytes(self.source_table[nth], at..at + row));
            }
        }
        after
    }
}

/// What a step of a plan does.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Grant(usize),
    Progress(usize),
}

impl Plan {
    /// Grants and progress interleaved at random, each in its own order.
    pub(super) fn steps(&self, rng: &mut StdRng) -> Vec<Step> {
        let (mut grants, mut progress) = (0, 0);
        let mut steps = Vec::new();
        while grants < self.windows.len() || progress < self.progress.len() {
            let grant =
                progress == self.progress.len() || (grants < self.windows.len() && rng.random_bool(0.4));
            if grant {
                steps.push(Step::Grant(grants));
                grants += 1;
            } else {
                steps.push(Step::Progress(progress));
                progress += 1;
            }
        }
        steps
    }

    pub(super) fn step(
        &self,
        step: Step,
        landing: &LandingSession,
        source: &SourceSession,
    ) -> Result<(), String> {
        match step {
            Step::Grant(nth) => {
                let window = self.windows[nth];
                let grant = landing.grant(window, self.landing_blocks(window)).map_err(|e| e.to_string())?;
                source.granted(grant).map_err(|e| e.to_string())
            }
            Step::Progress(nth) => {
                let (layers, tokens) = self.progress[nth];
                source.ready(layers, tokens, &self.source_blocks(tokens)).map_err(|e| e.to_string())
            }
        }
    }
}

/// Relays pieces to the landing until the source has nothing more to say, or has moved everything.
pub(super) async fn relay(source: &SourceSession, landing: &LandingSession) -> Option<SourceEvent> {
    loop {
        match source.next().await {
            Some(SourceEvent::Piece(piece)) => {
                let _ = landing.piece_ready(piece);
            }
            other => return other,
        }
    }
}

/// Windows that landed, and the last event.
pub(super) async fn landed(landing: &LandingSession) -> (Vec<WindowIndex>, LandingEvent) {
    let mut windows = Vec::new();
    loop {
        match landing.next().await {
            Some(LandingEvent::WindowLanded(window)) => windows.push(window),
            Some(last) => return (windows, last),
            None => panic!("events ended without a last one"),
        }
    }
}
