//! What is particular to shared memory: falling back, pieces that do not fit, a pool of another process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use armature_worker::domain::ids::BlockId;
use armature_worker::kv_memory::KvMemory;
use armature_worker::ports::KvGeometry;
use armature_worker::transfer::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::rig::{LONG, Rig, Wire, landed, relay};

const GEOMETRY: KvGeometry = KvGeometry { layers: 4, kv_heads: 2, head_dim: 16, block_size: 8 };
const TOKENS: TokenRange = TokenRange { start: 4, end: 20 };

fn table() -> Vec<BlockId> {
    vec![BlockId(3), BlockId(1), BlockId(6)]
}

/// Moves `TOKENS` in one window over whatever was settled.
async fn move_all(rig: &Rig, landing: &LandingSession, source: &SourceSession) {
    source.granted(landing.grant(TOKENS, table()).unwrap()).unwrap();
    source.ready(LayerRange::new(0, 4), TOKENS, &table()).unwrap();
    let (moved, (_, last)) = tokio::join!(relay(source, landing), landed(landing));
    assert_eq!(moved, Some(SourceEvent::Moved));
    assert!(matches!(last, LandingEvent::AllLanded(_)));
    let middle = |kv: &KvMemory| kv.bytes(BlockId(1), 0..GEOMETRY.block_bytes()).to_vec();
    assert!(middle(&rig.landing_kv) == middle(&rig.source_kv));
}

#[tokio::test]
async fn without_shared_memory_a_transfer_takes_tcp_and_says_why() {
    let rig = Rig::new(Wire::Shm, GEOMETRY, 8, 4096).await;
    let deadline = || Instant::now() + LONG;

    let (mut offer, landing) = rig.landing.open(Rig::request(1, TOKENS)).unwrap();
    offer.shm = Some(BootId("another".to_owned()));
    let (acceptance, source) = rig.source.accept(offer, deadline()).unwrap();
    assert_eq!(acceptance, Acceptance::Tcp { shm_refused: Some(ShmRefusal::OtherHost) });
    let chosen = landing.accepted(acceptance).await.unwrap();
    assert_eq!(chosen.shm_refused, Some(ShmRefusal::OtherHost));
    move_all(&rig, &landing, &source).await;

    // Equal boot ids, but the socket is not to be seen from here.
    let (offer, landing) = rig.landing.open(Rig::request(2, TOKENS)).unwrap();
    let (acceptance, source) = rig.source.accept(offer, deadline()).unwrap();
    assert_eq!(acceptance, Acceptance::Shm { incarnation: Incarnation(0xfeed) });
    std::fs::rename(rig.sockets.path().join("000000000000feed.sock"), rig.sockets.path().join("away"))
        .unwrap();
    let chosen = landing.accepted(acceptance.clone()).await.unwrap();
    let tcp = Chosen { transport: TransportKind::Tcp, shm_refused: Some(ShmRefusal::Unreachable) };
    assert_eq!(chosen, tcp);
    assert_eq!(landing.accepted(acceptance).await.unwrap(), tcp, "settled once");
    move_all(&rig, &landing, &source).await;
    std::fs::rename(rig.sockets.path().join("away"), rig.sockets.path().join("000000000000feed.sock"))
        .unwrap();

    // A peer that does not know our secret.
    let (mut offer, landing) = rig.landing.open(Rig::request(3, TOKENS)).unwrap();
    offer.secret = TransferSecret::new([0; 16]);
    let (acceptance, source) = rig.source.accept(offer, deadline()).unwrap();
    let chosen = landing.accepted(acceptance).await.unwrap();
    assert_eq!(chosen.shm_refused, Some(ShmRefusal::Unproven));
    source.granted(landing.grant(TOKENS, table()).unwrap()).unwrap();
    source.ready(LayerRange::new(0, 4), TOKENS, &table()).unwrap();
    assert_eq!(source.next().await, Some(SourceEvent::Failed(Failure::Unproven)));
}

#[tokio::test]
async fn without_any_transport_both_sides_say_so() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let directory = rig.sockets.path().to_owned();
    let shm = ShmLanding { directory, boot_id: BootId::of_this_host().unwrap() };
    let only_shm = HostLanding::start(rig.landing_kv.clone(), LandingOptions::default(), None, Some(shm));
    let (offer, landing) = only_shm.open(Rig::request(1, TOKENS)).unwrap();
    let refused = rig.source.accept(offer, Instant::now() + LONG).unwrap_err();
    assert_eq!(refused, AcceptError::NoTransport(ShmRefusal::NotConfigured));
    let lost = landing.accepted(Acceptance::Shm { incarnation: Incarnation(1) }).await;
    assert_eq!(lost, Err(Failure::NoTransport(ShmRefusal::Unreachable)));
    assert_eq!(landed(&landing).await.1, LandingEvent::Failed(Failure::NoTransport(ShmRefusal::Unreachable)));
}

#[tokio::test]
async fn a_piece_that_does_not_fit_ends_its_transfer_and_copies_nothing() {
    let rig = Rig::new(Wire::Shm, GEOMETRY, 8, 4096).await;
    let before = rig.snapshot();
    let piece = |transfer| PieceReady {
        transfer: TransferId(transfer),
        window: WindowIndex(0),
        layers: LayerRange::new(0, 4),
        tokens: TokenRange::new(4, 8),
        blocks: vec![PeerBlock(0)],
    };
    let cases = [
        (PieceReady { transfer: TransferId(99), ..piece(1) }, Violation::OtherTransfer),
        (PieceReady { window: WindowIndex(1), ..piece(2) }, Violation::WindowNotGranted(WindowIndex(1))),
        (PieceReady { layers: LayerRange::new(1, 5), ..piece(3) }, Violation::LayersOutsideModel),
        (PieceReady { blocks: vec![PeerBlock(8)], ..piece(4) }, Violation::BadBlocks),
        (PieceReady { blocks: vec![], ..piece(5) }, Violation::BadBlocks),
        (PieceReady { blocks: vec![PeerBlock(0), PeerBlock(1)], ..piece(6) }, Violation::BadBlocks),
        (PieceReady { tokens: TokenRange::new(8, 4), ..piece(7) }, Violation::BadBlocks),
        (
            PieceReady { tokens: TokenRange::new(0, 8), ..piece(8) },
            Violation::TokensOutsideWindow(TokenRange::new(0, 8)),
        ),
    ];
    for (nth, (bad, violation)) in (1..).zip(cases) {
        let (landing, _source) = rig.pair(nth, TOKENS).await;
        landing.grant(TOKENS, table()).unwrap();
        assert_eq!(landing.piece_ready(bad), Err(violation.into()));
        assert_eq!(landed(&landing).await.1, LandingEvent::Failed(violation.into()));
        landing.quiesced().await;
    }
    assert!(rig.snapshot() == before);
    let (landing, _source) = rig.pair(50, TOKENS).await;
    landing.grant(TOKENS, table()).unwrap();
    landing.piece_ready(piece(50)).unwrap();
    assert_eq!(landing.piece_ready(piece(50)), Err(Violation::RepeatedPiece.into()));
}

#[tokio::test]
async fn messages_of_the_other_transport_end_the_transfer() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let (landing, source) = rig.pair(1, TOKENS).await;
    let grant = landing.grant(TOKENS, table()).unwrap();
    let over_shm = source.granted(Grant { transport: TransportKind::Shm, ..grant });
    assert_eq!(over_shm, Err(Violation::WrongTransport.into()));
    let piece = PieceReady {
        transfer: TransferId(1),
        window: WindowIndex(0),
        layers: LayerRange::new(0, 1),
        tokens: TokenRange::new(4, 8),
        blocks: vec![PeerBlock(0)],
    };
    assert_eq!(landing.piece_ready(piece), Err(Violation::WrongTransport.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_pieces_go_by_blocking_threads_and_can_be_aborted() {
    let geometry = KvGeometry { layers: 4, kv_heads: 8, head_dim: 128, block_size: 16 };
    let rig = Rig::new(Wire::Shm, geometry, 64, 4096).await;
    let tokens = TokenRange::new(0, 64 * 16);
    let all: Vec<BlockId> = (0..64).map(BlockId).collect();
    for abort in [false, true] {
        let (landing, source) = rig.pair(u128::from(abort), tokens).await;
        source.granted(landing.grant(tokens, all.clone()).unwrap()).unwrap();
        source.ready(LayerRange::new(0, 4), tokens, &all).unwrap();
        let Some(SourceEvent::Piece(piece)) = source.next().await else { panic!("no piece") };
        landing.piece_ready(piece).unwrap();
        if abort {
            landing.abort();
            landing.quiesced().await;
            rig.landing_kv.poison(BlockId(0));
            let quarantined = rig.snapshot();
            tokio::task::yield_now().await;
            assert!(rig.snapshot() == quarantined);
        } else {
            assert_eq!(landed(&landing).await.1, LandingEvent::AllLanded(Commit::AfterAckConfirmed));
            let last = |kv: &KvMemory| kv.bytes(BlockId(63), 0..geometry.block_bytes()).to_vec();
            assert!(last(&rig.landing_kv) == last(&rig.source_kv));
        }
    }
    assert_eq!(rig.landing.kept_mappings(), 1);
}

#[tokio::test]
async fn a_mapping_that_nobody_uses_is_given_up() {
    let rig = Rig::new(Wire::Shm, GEOMETRY, 8, 4096).await;
    let (landing, source) = rig.pair(1, TOKENS).await;
    move_all(&rig, &landing, &source).await;
    landing.quiesced().await;
    drop(landing);
    assert_eq!(rig.landing.kept_mappings(), 1);
    tokio::time::pause();
    while rig.landing.kept_mappings() > 0 {
        tokio::time::advance(MAPPING_IDLE / 2).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn strangers_at_the_pools_socket_get_nothing() {
    let rig = Rig::new(Wire::Shm, GEOMETRY, 8, 4096).await;
    let (offer, landing) = rig.landing.open(Rig::request(1, TOKENS)).unwrap();
    let (acceptance, source) = rig.source.accept(offer, Instant::now() + LONG).unwrap();
    let socket = rig.sockets.path().join("000000000000feed.sock");
    let mut hello = b"armkv\0\0\x01".to_vec();
    hello.extend(1u128.to_le_bytes());
    hello.extend([3; 16]);
    let mut told = Vec::new();
    // Garbage, and a hello of a known transfer followed by a proof of nothing.
    for (words, answer) in [(vec![0u8; 72], 0), ([hello, vec![0; 32]].concat(), 48)] {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(&words).await.unwrap();
        told.clear();
        let _ = stream.read_to_end(&mut told).await;
        assert_eq!(told.len(), answer, "no pool after it");
    }
    landing.accepted(acceptance).await.unwrap();
    assert_eq!(landing.transport(), Some(TransportKind::Shm));
    move_all(&rig, &landing, &source).await;
}

#[tokio::test]
async fn a_source_takes_its_socket_away_with_it() {
    let rig = Rig::new(Wire::Shm, GEOMETRY, 8, 4096).await;
    let socket = rig.sockets.path().join("000000000000feed.sock");
    assert!(socket.exists());
    rig.source.close().await;
    assert!(!socket.exists());
}

const CHILD_DIRECTORY: &str = "ARMATURE_TEST_SOCKETS";

/// Byte `at` of block `block` of the other process's pool.
fn pattern(block: u32, at: usize) -> u8 {
    (block as usize * 31 + at * 7 + at / 251) as u8
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: P of the test below, in its own process. Speaks lines: takes `grant`, tells
/// pieces; takes `ack`, tells `confirmed`.
#[tokio::test]
#[ignore = "run by pulls_from_the_pool_of_another_process"]
#[allow(clippy::print_stdout, reason = "its parent reads the lines")]
async fn source_process() {
    let Ok(directory) = std::env::var(CHILD_DIRECTORY) else { return };
    let kv = Arc::new(KvMemory::new(GEOMETRY, 8).unwrap());
    for block in 0..8 {
        let bytes = kv.bytes_mut(BlockId(block), 0..GEOMETRY.block_bytes());
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(block, at));
    }
    let boot_id = BootId::of_this_host().unwrap();
    let export =
        ShmExport { directory: directory.into(), boot_id: boot_id.clone(), incarnation: Incarnation(77) };
    let endpoint = HostSource::start(kv, SourceOptions::default(), Some(export)).unwrap();
    let LandingRequest { transfer, secret, tokens, .. } = Rig::request(1, TOKENS);
    let offer = Offer { transfer, secret, tokens, tcp: None, shm: Some(boot_id) };
    let (_, source) = endpoint.accept(offer, Instant::now() + LONG).unwrap();
    let told = |line: &str| println!("p: {line}");
    told("ready");
    let (line_sender, mut lines) = tokio::sync::mpsc::channel(8);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = line_sender.blocking_send(line);
        }
    });
    while let Some(line) = lines.recv().await {
        match line.as_str() {
            "grant" => {
                let transport = TransportKind::Shm;
                source.granted(Grant { transfer, window: WindowIndex(0), tokens, transport }).unwrap();
                for layer in 0..4 {
                    source.ready(LayerRange::new(layer, layer + 1), TOKENS, &table()).unwrap();
                    let Some(SourceEvent::Piece(piece)) = source.next().await else { panic!("no piece") };
                    told(&format!("piece {} {}", piece.layers.start, piece.layers.end));
                }
            }
            "ack" => {
                source.acknowledge().unwrap();
                told("confirmed");
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn pulls_from_the_pool_of_another_process() {
    let sockets = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["transfer::shm::source_process", "--exact", "--ignored", "--nocapture"]);
    child.env(CHILD_DIRECTORY, sockets.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Killed(child.spawn().unwrap());
    let mut to_source = child.0.stdin.take().unwrap();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The test harness of the child may put its own words in front.
    let mut heard = || {
        let said = |line: String| line.split_once("p: ").map(|(_, said)| said.to_owned());
        lines.by_ref().find_map(said).expect("the other process lives")
    };

    let kv = Arc::new(KvMemory::new(GEOMETRY, 8).unwrap());
    let shm = ShmLanding { directory: sockets.path().to_owned(), boot_id: BootId::of_this_host().unwrap() };
    let endpoint = HostLanding::start(Arc::clone(&kv), LandingOptions::default(), None, Some(shm));
    let (_, landing) = endpoint.open(Rig::request(1, TOKENS)).unwrap();
    assert_eq!(heard(), "ready");
    let chosen = landing.accepted(Acceptance::Shm { incarnation: Incarnation(77) }).await.unwrap();
    assert_eq!(chosen, Chosen { transport: TransportKind::Shm, shm_refused: None });
    let ours = vec![BlockId(0), BlockId(5), BlockId(2)];
    landing.grant(TOKENS, ours.clone()).unwrap();
    writeln!(to_source, "grant").unwrap();
    for layer in 0..4 {
        assert_eq!(heard(), format!("piece {layer} {}", layer + 1));
        let piece = PieceReady {
            transfer: TransferId(1),
            window: WindowIndex(0),
            layers: LayerRange::new(layer, layer + 1),
            tokens: TOKENS,
            blocks: table().iter().map(|block| PeerBlock(block.0)).collect(),
        };
        landing.piece_ready(piece).unwrap();
    }
    assert_eq!(landed(&landing).await.1, LandingEvent::AllLanded(Commit::AfterAckConfirmed));
    writeln!(to_source, "ack").unwrap();
    assert_eq!(heard(), "confirmed");

    // The whole block in the middle, and that the partial ones have their slots only.
    let row = GEOMETRY.row() * 4;
    for (nth, block) in ours.iter().enumerate() {
        for (at, byte) in kv.bytes(*block, 0..GEOMETRY.block_bytes()).iter().enumerate() {
            let position = nth * 8 + at / row % 8;
            let moved = (TOKENS.start as usize..TOKENS.end as usize).contains(&position);
            assert_eq!(*byte, if moved { pattern(table()[nth].0, at) } else { 0 });
        }
    }
}
