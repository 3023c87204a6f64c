//! What the data plane costs over the bare movement of the same bytes, in one run: `tcp` against two
//! plain sockets, `shm` against one memcpy. The last lines are the ratios of medians of rounds that
//! alternate, so that a busy machine slows both alike.

use std::io::{Read, Write};
use std::net::{TcpListener as PlainListener, TcpStream as PlainStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use armature_worker::domain::ids::BlockId;
use armature_worker::kv_memory::KvMemory;
use armature_worker::ports::KvGeometry;
use armature_worker::transfer::*;
use criterion::{Criterion, Throughput};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A block is 1 MiB, a layer of it 64 KiB.
const GEOMETRY: KvGeometry = KvGeometry { layers: 16, kv_heads: 8, head_dim: 64, block_size: 16 };
const BLOCKS: u32 = 64;
const ROUNDS: usize = 21;

fn bytes() -> usize {
    BLOCKS as usize * GEOMETRY.block_bytes()
}

struct Pair {
    runtime: Runtime,
    source: HostSource,
    landing: HostLanding,
    _sockets: tempfile::TempDir,
    transfers: u128,
}

impl Pair {
    fn new(over_shm: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let sockets = tempfile::tempdir().expect("a directory");
        let pool = || {
            let kv = KvMemory::new(GEOMETRY, BLOCKS as usize).expect("a pool");
            (0..BLOCKS).for_each(|block| kv.poison(BlockId(block)));
            Arc::new(kv)
        };
        let directory = sockets.path().to_owned();
        let boot_id = BootId::of_this_host().expect("a boot id");
        let export =
            ShmExport { directory: directory.clone(), boot_id: boot_id.clone(), incarnation: Incarnation(1) };
        let import = ShmLanding { directory, boot_id };
        let (source, landing) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let advertised = listener.local_addr().expect("an address").to_string();
            let tcp = TcpLanding { listener, advertised };
            let options = LandingOptions::default();
            let landing = HostLanding::start(pool(), options, Some(tcp), over_shm.then_some(import));
            let export = over_shm.then_some(export);
            (HostSource::start(pool(), SourceOptions::default(), export).expect("a socket"), landing)
        });
        Self { runtime, source, landing, _sockets: sockets, transfers: 0 }
    }

    /// One whole transfer of the pool, layer by layer, offer to Ack.
    fn transfer(&mut self) {
        self.transfers += 1;
        let tokens = TokenRange::new(0, BLOCKS * GEOMETRY.block_size as u32);
        let table: Vec<BlockId> = (0..BLOCKS).map(BlockId).collect();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let request = LandingRequest {
            transfer: TransferId(self.transfers),
            secret: TransferSecret::new([7; 16]),
            tokens,
            deadline,
        };
        self.runtime.block_on(async {
            let (offer, landing) = self.landing.open(request).expect("opens");
            let (acceptance, source) = self.source.accept(offer, deadline).expect("accepts");
            landing.accepted(acceptance).await.expect("settles");
            source.granted(landing.grant(tokens, table.clone()).expect("grants")).expect("is granted");
            for layer in 0..GEOMETRY.layers as u32 {
                source.ready(LayerRange::new(layer, layer + 1), tokens, &table).expect("is ready");
            }
            let relay = async {
                while let Some(SourceEvent::Piece(piece)) = source.next().await {
                    landing.piece_ready(piece).expect("fits");
                }
            };
            let landed = async {
                while let Some(event) = landing.next().await {
                    assert!(!matches!(event, LandingEvent::Failed(_)), "{event:?}");
                }
            };
            tokio::join!(relay, landed);
            source.acknowledge().expect("is pinned");
        });
    }
}

/// The same bytes over one connection of two blocking threads.
struct Plain {
    listener: PlainListener,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Plain {
    fn new() -> Self {
        let listener = PlainListener::bind("127.0.0.1:0").expect("a port");
        Self { listener, from: vec![1; bytes()], to: vec![2; bytes()] }
    }

    fn sockets(&mut self) {
        let address = self.listener.local_addr().expect("an address");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = PlainStream::connect(address).expect("connects");
                stream.write_all(&self.from).expect("writes");
            });
            let (mut stream, _) = self.listener.accept().expect("accepts");
            stream.read_exact(&mut self.to).expect("reads");
        });
    }

    fn memcpy(&mut self) {
        self.to.copy_from_slice(std::hint::black_box(&self.from));
        std::hint::black_box(&self.to);
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Bare time over ours: 1 is no cost at all.
fn ratio(mut ours: impl FnMut(), mut bare: impl FnMut()) -> f64 {
    let timed = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (timed(&mut ours), timed(&mut bare))).collect();
    let (ours, bare): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
    median(bare) / median(ours)
}

fn main() {
    let (mut tcp, mut shm, mut plain) = (Pair::new(false), Pair::new(true), Plain::new());
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    let mut group = criterion.benchmark_group("transfer of 64 MiB");
    group.throughput(Throughput::Bytes(bytes() as u64));
    group.bench_function("tcp", |bencher| bencher.iter(|| tcp.transfer()));
    group.bench_function("two plain sockets", |bencher| bencher.iter(|| plain.sockets()));
    group.bench_function("shm", |bencher| bencher.iter(|| shm.transfer()));
    group.bench_function("memcpy", |bencher| bencher.iter(|| plain.memcpy()));
    group.finish();
    criterion.final_summary();
    // `cargo test --benches` only looks whether it runs.
    if std::env::args().any(|argument| argument == "--bench") {
        eprintln!("tcp reaches {:.2} of two plain sockets", ratio(|| tcp.transfer(), || plain.sockets()));
        eprintln!("shm reaches {:.2} of memcpy", ratio(|| shm.transfer(), || plain.memcpy()));
    }
}
