//! Peers that break the rules of the data port. The wire is written out here a second time, from its
//! documentation.

use std::time::Duration;

use armature_worker::domain::ids::BlockId;
use armature_worker::ports::KvGeometry;
use armature_worker::transfer::*;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;

use super::rig::{LONG, Rig, Wire, landed};

const GEOMETRY: KvGeometry = KvGeometry { layers: 4, kv_heads: 2, head_dim: 16, block_size: 8 };
/// Bytes of one token of one layer.
const CELL: u64 = 2 * 2 * 16 * 4;

fn proof(secret: &[u8], role: u8, transfer: u128, dialer: &[u8], answerer: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    for part in [b"armature-kv-frames-v1", &[role] as &[u8], &transfer.to_le_bytes(), dialer, answerer] {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn hello(transfer: u128) -> Vec<u8> {
    [b"armkv\0\0\x01", &transfer.to_le_bytes() as &[u8], &[3u8; 16]].concat()
}

/// A P of our own: connects and proves.
async fn dial(offer: &Offer, secret: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(offer.tcp.as_ref().unwrap()).await?;
    stream.write_all(&hello(offer.transfer.0)).await?;
    let mut reply = [0; 48];
    stream.read_exact(&mut reply).await?;
    let (nonce, answer) = reply.split_at(16);
    if secret == offer.secret.expose() {
        assert_eq!(answer, proof(secret, 2, offer.transfer.0, &[3; 16], nonce));
    }
    stream.write_all(&proof(secret, 1, offer.transfer.0, &[3; 16], nonce)).await?;
    Ok(stream)
}

/// A D of our own: accepts and proves.
async fn answer(listener: &TcpListener, transfer: u128, secret: &[u8]) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut hello = [0; 40];
    stream.read_exact(&mut hello).await.unwrap();
    assert_eq!(hello[8..24], transfer.to_le_bytes());
    let ours = proof(secret, 2, transfer, &hello[24..], &[4; 16]);
    stream.write_all(&[&[4u8; 16] as &[u8], &ours].concat()).await.unwrap();
    let mut theirs = [0; 32];
    if stream.read_exact(&mut theirs).await.is_ok() {
        assert_eq!(theirs, proof(secret, 1, transfer, &hello[24..], &[4; 16]));
    }
    stream
}

#[derive(Clone, Copy)]
struct Header {
    transfer: u128,
    window: u32,
    layers: (u32, u32),
    tokens: (u32, u32),
    bytes: u64,
}

impl Header {
    fn new(transfer: u128, window: u32, layers: (u32, u32), tokens: (u32, u32)) -> Self {
        let bytes = u64::from(layers.1) * u64::from(tokens.1) * CELL;
        Self { transfer, window, layers, tokens, bytes }
    }
    fn encode(&self) -> Vec<u8> {
        let mut out = b"akvf".to_vec();
        out.extend(self.transfer.to_le_bytes());
        for field in [self.window, self.layers.0, self.layers.1, self.tokens.0, self.tokens.1] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.bytes.to_le_bytes());
        out
    }
    fn with_payload(&self) -> Vec<u8> {
        let mut out = self.encode();
        out.resize(out.len() + self.bytes as usize, 0x77);
        out
    }
}

/// A landing of tokens 4..20 with window 0 = 4..12 in blocks 1, 2 and a peer of our own that has proven.
async fn attacked(rig: &Rig, transfer: u128) -> (LandingSession, TcpStream) {
    let (offer, landing) = rig.landing.open(Rig::request(transfer, TokenRange::new(4, 20))).unwrap();
    landing.accepted(Acceptance::Tcp { shm_refused: None }).await.unwrap();
    landing.grant(TokenRange::new(4, 12), vec![BlockId(1), BlockId(2)]).unwrap();
    let stream = dial(&offer, offer.secret.expose()).await.unwrap();
    (landing, stream)
}

#[tokio::test]
async fn a_frame_that_breaks_a_rule_ends_its_transfer_alone() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let (bystander, mut by_stream) = attacked(&rig, 99).await;
    let good = |id| Header::new(id, 0, (0, 2), (4, 8));
    let length = |found| Violation::WrongLength { expected: 2 * 8 * CELL, found };
    let cases: Vec<(Vec<Header>, Violation)> = vec![
        (vec![good(1), good(1)], Violation::RepeatedPiece),
        (vec![good(2), Header::new(2, 0, (1, 1), (11, 1))], Violation::RepeatedPiece),
        (vec![Header { transfer: 99, ..good(3) }], Violation::OtherTransfer),
        (vec![Header { window: 1, ..good(4) }], Violation::WindowNotGranted(WindowIndex(1))),
        (vec![Header::new(5, 0, (0, 1), (4, 9))], Violation::TokensOutsideWindow(TokenRange::new(4, 13))),
        (vec![Header::new(6, 0, (0, 1), (3, 2))], Violation::TokensOutsideWindow(TokenRange::new(3, 5))),
        (vec![Header::new(7, 0, (3, 2), (4, 1))], Violation::LayersOutsideModel),
        (vec![Header::new(8, 0, (2, 0), (4, 1))], Violation::LayersOutsideModel),
        (vec![Header::new(9, 0, (0, 1), (12, 0))], Violation::TokensOutsideWindow(TokenRange::new(12, 12))),
        (vec![Header { bytes: 2 * 8 * CELL + 1, ..good(10) }], length(2 * 8 * CELL + 1)),
        (vec![Header { bytes: u64::MAX, ..good(11) }], length(u64::MAX)),
        (vec![Header { tokens: (u32::MAX, 8), ..good(12) }], Violation::MalformedFrame),
    ];
    for (nth, (frames, violation)) in (1..).zip(cases) {
        let (landing, mut stream) = attacked(&rig, nth).await;
        let (last, good) = frames.split_last().unwrap();
        for frame in good {
            stream.write_all(&frame.with_payload()).await.unwrap();
        }
        stream.write_all(&last.encode()).await.unwrap();
        assert_eq!(landed(&landing).await.1, LandingEvent::Failed(violation.into()), "case {nth}");
        landing.quiesced().await;
        let mut status = Vec::new();
        stream.read_to_end(&mut status).await.unwrap();
        assert_eq!(status, [3], "case {nth}");
    }
    let outside = rig.landing_kv.bytes(BlockId(1), 0..4 * 2 * 16 * 4).to_vec();
    by_stream.write_all(&Header::new(99, 0, (0, 4), (4, 8)).with_payload()).await.unwrap();
    assert_eq!(bystander.next().await, Some(LandingEvent::WindowLanded(WindowIndex(0))));
    assert_eq!(rig.landing_kv.bytes(BlockId(1), 0..outside.len()), outside, "slots before the window");
}

#[tokio::test]
async fn a_cut_connection_ends_the_transfer_typed() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let frame = Header::new(1, 0, (0, 4), (4, 8)).with_payload();
    for (transfer, len, failure) in [
        (1, 0, Failure::ConnectionLost),
        (2, 10, Failure::Truncated),
        (3, 48, Failure::Truncated),
        (4, 1000, Failure::Truncated),
        (5, frame.len(), Failure::ConnectionLost),
    ] {
        let (landing, mut stream) = attacked(&rig, transfer).await;
        let mut frame = frame.clone();
        frame[4] = transfer as u8;
        stream.write_all(&frame[..len]).await.unwrap();
        drop(stream);
        assert_eq!(landed(&landing).await.1, LandingEvent::Failed(failure), "after {len} bytes");
        landing.quiesced().await;
    }
}

#[tokio::test]
async fn nothing_of_a_frame_arrives_after_an_abort_inside_it() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let frame = Header::new(1, 0, (0, 4), (4, 8)).with_payload();
    let (landing, mut stream) = attacked(&rig, 1).await;
    let half = frame.len() / 2;
    stream.write_all(&frame[..half]).await.unwrap();
    // K rows of the first layer of the first block are the first bytes of the payload.
    while rig.landing_kv.bytes(BlockId(1), 1020..1024) != [0x77; 4] {
        tokio::task::yield_now().await;
    }
    landing.abort();
    landing.quiesced().await;
    let quarantined = rig.snapshot();
    let _ = stream.write_all(&frame[half..]).await;
    let mut status = Vec::new();
    stream.read_to_end(&mut status).await.unwrap();
    assert_eq!(status, [1]);
    assert!(rig.snapshot() == quarantined);
}

#[tokio::test]
async fn garbage_and_wrong_secrets_touch_nothing() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let (offer, landing) = rig.landing.open(Rig::request(1, TokenRange::new(4, 12))).unwrap();
    let (acceptance, source) = rig.source.accept(offer.clone(), Instant::now() + LONG).unwrap();
    landing.accepted(acceptance).await.unwrap();
    let grant = landing.grant(TokenRange::new(4, 12), vec![BlockId(1), BlockId(2)]).unwrap();
    let before = rig.snapshot();
    let mut end = Vec::new();

    for garbage in
        [vec![0u8; 4000], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n and some more bytes".to_vec(), hello(2)]
    {
        let mut stream = TcpStream::connect(offer.tcp.as_ref().unwrap()).await.unwrap();
        let _ = stream.write_all(&garbage).await;
        let _ = stream.read_to_end(&mut end).await;
    }
    assert!(end.is_empty(), "an unknown peer is told nothing");

    let mut wrong = dial(&offer, &[1; 16]).await.unwrap();
    let _ = wrong.write_all(&Header::new(1, 0, (0, 4), (4, 8)).with_payload()).await;
    let _ = wrong.read_to_end(&mut end).await;
    assert!(end.is_empty());
    assert!(rig.snapshot() == before);
    assert_eq!(rig.landing.refused_connections(), 4);

    source.granted(grant).unwrap();
    source.ready(LayerRange::new(0, 4), TokenRange::new(4, 12), &[BlockId(1), BlockId(2)]).unwrap();
    assert_eq!(landed(&landing).await.1, LandingEvent::AllLanded(Commit::Now));
}

#[tokio::test]
async fn a_second_connection_is_turned_away_and_the_first_goes_on() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let (offer, landing) = rig.landing.open(Rig::request(1, TokenRange::new(4, 12))).unwrap();
    let mut early = dial(&offer, offer.secret.expose()).await.unwrap();
    let mut end = Vec::new();
    let _ = early.read_to_end(&mut end).await;
    assert!(end.is_empty(), "no connection before a transport is settled");
    landing.accepted(Acceptance::Tcp { shm_refused: None }).await.unwrap();
    landing.grant(TokenRange::new(4, 12), vec![BlockId(1), BlockId(2)]).unwrap();
    let mut first = dial(&offer, offer.secret.expose()).await.unwrap();
    first.write_all(&Header::new(1, 0, (0, 1), (4, 8)).with_payload()).await.unwrap();
    // The first has its place once a byte of it is in the pool.
    while rig.landing_kv.bytes(BlockId(1), 1023..1024) != [0x77] {
        tokio::task::yield_now().await;
    }
    let mut second = dial(&offer, offer.secret.expose()).await.unwrap();
    let _ = second.read_to_end(&mut end).await;
    assert!(end.is_empty());
    first.write_all(&Header::new(1, 0, (1, 3), (4, 8)).with_payload()).await.unwrap();
    assert_eq!(landed(&landing).await.1, LandingEvent::AllLanded(Commit::Now));
    first.read_to_end(&mut end).await.unwrap();
    assert_eq!(end, [0]);
}

#[tokio::test]
async fn idle_connections_give_their_places_back() {
    let kv = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let advertised = listener.local_addr().unwrap().to_string();
    let handshake_timeout = Duration::from_millis(100);
    let options = LandingOptions { max_unproven: 2, handshake_timeout, ..LandingOptions::default() };
    let tcp = TcpLanding { listener, advertised: advertised.clone() };
    let landing = HostLanding::start(kv.landing_kv.clone(), options, Some(tcp), None);
    let mut idle = Vec::new();
    for _ in 0..6 {
        idle.push(TcpStream::connect(&advertised).await.unwrap());
    }
    let (offer, session) = landing.open(Rig::request(1, TokenRange::new(0, 8))).unwrap();
    session.accepted(Acceptance::Tcp { shm_refused: None }).await.unwrap();
    session.grant(TokenRange::new(0, 8), vec![BlockId(0)]).unwrap();
    let mut stream = dial(&offer, offer.secret.expose()).await.unwrap();
    stream.write_all(&Header::new(1, 0, (0, 4), (0, 8)).with_payload()).await.unwrap();
    assert_eq!(landed(&session).await.1, LandingEvent::AllLanded(Commit::Now));
}

/// A source of `blocks` full blocks, granted and ready in full, that sends to `listener`.
fn sending(rig: &Rig, listener: &TcpListener, blocks: u32) -> SourceSession {
    let tokens = TokenRange::new(0, blocks * 8);
    let offer = Offer {
        transfer: TransferId(1),
        secret: TransferSecret::new([9; 16]),
        tokens,
        tcp: Some(listener.local_addr().unwrap().to_string()),
        shm: None,
    };
    let (_, source) = rig.source.accept(offer, Instant::now() + LONG).unwrap();
    let transport = TransportKind::Tcp;
    source.granted(Grant { transfer: TransferId(1), window: WindowIndex(0), tokens, transport }).unwrap();
    let table: Vec<BlockId> = (0..blocks).map(BlockId).collect();
    source.ready(LayerRange::new(0, 4), tokens, &table).unwrap();
    source
}

#[tokio::test]
async fn a_reader_that_stops_stops_the_source() {
    let geometry = KvGeometry { layers: 4, kv_heads: 8, head_dim: 128, block_size: 8 };
    let rig = Rig::new(Wire::Tcp, geometry, 64, 1 << 20).await;
    let total = 64 * geometry.block_bytes();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(4).unwrap();

    // One that reads it all in the end.
    let source = sending(&rig, &listener, 64);
    let mut stream = answer(&listener, 1, &[9; 16]).await;
    let mut received = Vec::new();
    let mut chunk = vec![0; 100_000];
    while received.len() < total + total.div_ceil(1 << 20) * 48 {
        let n = stream.read(&mut chunk).await.unwrap();
        received.extend_from_slice(&chunk[..n]);
        tokio::task::yield_now().await;
    }
    assert_eq!(source.next().await, Some(SourceEvent::Moved));
    assert_eq!(received[48..48 + 1000], *rig.source_kv.bytes(BlockId(0), 0..1000));
    stream.write_all(&[0]).await.unwrap();
    source.acknowledge().unwrap();
    source.quiesced().await;

    // One that reads nothing: when the source is aborted, what is in flight is less than all.
    while rig.source.open_transfers() > 0 {
        tokio::task::yield_now().await;
    }
    let source = sending(&rig, &listener, 64);
    let mut stream = answer(&listener, 1, &[9; 16]).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    source.abort();
    assert_eq!(source.next().await, Some(SourceEvent::Failed(Failure::Aborted)));
    source.quiesced().await;
    let mut in_flight = Vec::new();
    let _ = stream.read_to_end(&mut in_flight).await;
    assert!(in_flight.len() < total, "{} of {total} bytes were sent to nobody", in_flight.len());
}

#[tokio::test]
async fn a_source_ends_typed_whatever_its_landing_does() {
    let rig = Rig::new(Wire::Tcp, GEOMETRY, 8, 4096).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settle = async || {
        while rig.source.open_transfers() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let failed = |failure| Some(SourceEvent::Failed(failure));

    let source = sending(&rig, &listener, 8);
    drop(answer(&listener, 1, &[8; 16]).await);
    assert_eq!(source.next().await, failed(Failure::Unproven));
    settle().await;

    let source = sending(&rig, &listener, 8);
    drop(listener.accept().await.unwrap());
    assert!(matches!(
        source.next().await,
        Some(SourceEvent::Failed(Failure::Unproven | Failure::Unreachable(_)))
    ));
    settle().await;

    for (status, said) in [
        (1, PeerFailure::Aborted),
        (2, PeerFailure::Deadline),
        (3, PeerFailure::Violation),
        (200, PeerFailure::Other),
    ] {
        let source = sending(&rig, &listener, 8);
        let mut stream = answer(&listener, 1, &[9; 16]).await;
        stream.write_all(&[status]).await.unwrap();
        let mut last = source.next().await;
        if last == Some(SourceEvent::Moved) {
            last = source.next().await;
        }
        assert_eq!(last, failed(Failure::Peer(said)));
        settle().await;
    }

    let source = sending(&rig, &listener, 8);
    let mut stream = answer(&listener, 1, &[9; 16]).await;
    assert_eq!(source.next().await, Some(SourceEvent::Moved));
    let mut all = vec![0; 8 * GEOMETRY.block_bytes()];
    stream.read_exact(&mut all).await.unwrap();
    drop(stream);
    assert_eq!(source.next().await, failed(Failure::ConnectionLost));
    settle().await;

    let address = listener.local_addr().unwrap();
    drop(listener);
    let again = TcpListener::bind(address).await.unwrap();
    let source = sending(&rig, &again, 8);
    drop(again);
    // Either nobody listens, or the connection dies in the backlog.
    let last = source.next().await;
    let typed = Failure::Unreachable(std::io::ErrorKind::ConnectionRefused);
    assert!(last == failed(typed) || matches!(last, Some(SourceEvent::Failed(_))), "{last:?}");
}
