//! One decision over 64 workers for a prompt of 512 blocks, half of it cached somewhere; the round-robin policy and the index of hash maps are the
//! baselines.
#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_router::domain::explain::KeptDecisions;
use armature_router::domain::fit::StepFit;
use armature_router::domain::index::map::MapIndex;
use armature_router::domain::index::predicted::Predicted;
use armature_router::domain::index::segmented::SegmentedIndex;
use armature_router::domain::index::snapshot::Snapshot;
use armature_router::domain::index::wire::{CheckedIndex, Mark};
use armature_router::domain::load::Report;
use armature_router::domain::policy::{Constraints, PolicyKind, Question, Settings};
use armature_router::domain::reservations::{Bounds, Reservations};
use armature_router::domain::router::{Request, Router};
use armature_router::domain::step_cost::StepPrior;
use armature_router::domain::units::{BlockSize, Blocks, SequenceHash, Tier, Time, Tokens};
use armature_router::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};
use armature_router::ports::PrefixIndex;
use criterion::{Criterion, criterion_group, criterion_main};

const WORKERS: u64 = 64;
const BLOCKS: u64 = 512;

fn set() -> ServedSet {
    let digest = |n| Digest(Arc::new([n; 32]));
    ServedSet { model: digest(1), tokenizer: digest(2), template: digest(3) }
}

fn worker(n: u64) -> Worker {
    Worker {
        rank: WorkerRank::first(InstanceId(n)),
        address: "mem:worker".into(),
        status: Status::Ready,
        namespace: "default".into(),
        served_name: "model".into(),
        set: set(),
        roles: Roles { aggregated: true, ..Roles::default() },
        engine: "sim".into(),
        labels: Arc::default(),
        context_length: Tokens(131_072),
        block_size: BlockSize(64),
        kv_blocks: Blocks(16_384),
        spec_hash: "".into(),
        capabilities: Arc::default(),
        compat_key: Digest::default(),
        hash_scheme: "armature-xxh3-v1".into(),
        limits: Limits { max_running: 256, max_waiting: 256, max_batched_tokens: 8192 },
        weight: 1.0,
        prior: StepPrior::default(),
        fit: StepFit::default(),
    }
}

/// Mixed so that neighbours differ in every bit, as hashes do.
fn hash(chain: u64, block: u64) -> SequenceHash {
    SequenceHash((chain << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ chain.rotate_left(17))
}

fn router(policy: PolicyKind, index: Box<dyn PrefixIndex>) -> Router {
    let bounds = Bounds {
        admission: Duration::from_secs(10),
        remember: Duration::from_secs(30),
        max_open: 65_536,
        max_ended: 65_536,
    };
    let mut router = Router::new(
        Settings { policy, ..Settings::default() },
        CheckedIndex::new(index),
        Predicted::new(262_144, Duration::from_secs(30), 9),
        Reservations::new(bounds),
        KeptDecisions::new(16 << 20),
    );
    router.members((1..=WORKERS).map(worker).collect(), Time::default());
    for n in 1..=WORKERS {
        let rank = WorkerRank::first(InstanceId(n));
        let report = Report { running: (n % 17) as u32, uncomputed: Tokens(n * 37), ..Report::default() };
        router.report(rank.instance, vec![(rank, report)], &[], Time::default());
        // Everybody has a part of the shared start, and as much that is its own.
        let shared = (0..n * 4).map(|block| hash(0, block));
        let own = (0..2_000).map(|block| hash(n, block));
        let blocks: Vec<_> = shared.chain(own).collect();
        let digest =
            armature_contracts::kv_hash::set_digest(blocks.iter().map(|hash| (hash.0, Tier::Device as u8)));
        let mark = Mark { batch: 1, count: blocks.len() as u64, digest };
        router
            .kv_snapshot(rank, &Snapshot { mark, blocks: vec![(Tier::Device, blocks)] })
            .expect("the set is right");
    }
    router
}

fn decision(c: &mut Criterion) {
    let question = Arc::new(Question {
        namespace: "default".into(),
        set: set(),
        prompt: Tokens(BLOCKS * 64 + 5),
        hashes: Some(("armature-xxh3-v1".into(), BlockSize(64))),
        choices: 1,
        migrated: false,
        expected_output: None,
        constraints: Constraints::default(),
    });
    let prompt: Arc<[SequenceHash]> = (0..BLOCKS).map(|block| hash(0, block)).collect();
    let mut group = c.benchmark_group("decision of 64 workers, 512 blocks");
    let segmented = || -> Box<dyn PrefixIndex> { Box::new(SegmentedIndex::new(256 << 20, [7, 8, 9])) };
    let cases: [(&str, PolicyKind, Box<dyn PrefixIndex>); 3] = [
        ("round-robin", PolicyKind::RoundRobin, segmented()),
        ("kv", PolicyKind::Kv, segmented()),
        ("kv with the map", PolicyKind::Kv, Box::new(MapIndex::new(8_000_000, 7))),
    ];
    for (name, policy, index) in cases {
        let mut router = router(policy, index);
        let mut n = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                n += 1;
                let key = ReservationKey { id: n, attempt: 1 };
                let request = Request { key, question: question.clone(), prompt: prompt.clone() };
                let answer = router.route(black_box(&request), n as u64, Time::default());
                router.release(&[key], Time::default());
                answer.expect("somebody is free")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
