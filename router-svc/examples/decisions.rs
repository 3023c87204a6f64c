//! CPU time of a router's decisions: `decisions [block size] [decisions]`, 16 and 1,000 by default.
//!
//! 100 workers, prompts of 100,000 tokens of which some workers have a part, each routed, admitted after ten others, and kept for explanation. Prints
//! microseconds of CPU time per decision, reservation and settlement; instructions are the difference of two runs under
//! `valgrind --tool=callgrind` with different numbers of decisions.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_router::domain::explain::KeptDecisions;
use armature_router::domain::fit::StepFit;
use armature_router::domain::index::predicted::Predicted;
use armature_router::domain::index::segmented::SegmentedIndex;
use armature_router::domain::index::snapshot::Snapshot;
use armature_router::domain::index::wire::{CheckedIndex, Mark};
use armature_router::domain::load::Report;
use armature_router::domain::policy::{Constraints, Question, Settings};
use armature_router::domain::reservations::{Bounds, Reservations, Settled, Settlement};
use armature_router::domain::router::{Request, Router};
use armature_router::domain::step_cost::StepPrior;
use armature_router::domain::units::{BlockSize, Blocks, SequenceHash, Tier, Time, Tokens};
use armature_router::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};

const WORKERS: u64 = 100;
const PROMPT: u64 = 100_000;

fn set() -> ServedSet {
    let digest = |n| Digest(Arc::new([n; 32]));
    ServedSet { model: digest(1), tokenizer: digest(2), template: digest(3) }
}

fn worker(n: u64, size: u32) -> Worker {
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
        block_size: BlockSize(size),
        kv_blocks: Blocks(2_000_000 / size),
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

fn router(size: u32) -> Router {
    let bounds = Bounds {
        admission: Duration::from_secs(10),
        remember: Duration::from_secs(30),
        max_open: 65_536,
        max_ended: 65_536,
    };
    let mut router = Router::new(
        Settings::default(),
        CheckedIndex::new(Box::new(SegmentedIndex::new(256 << 20, [7, 8, 9]))),
        Predicted::new(2_097_152, Duration::from_secs(30), 9),
        Reservations::new(bounds),
        KeptDecisions::new(64 << 20),
    );
    router.members((1..=WORKERS).map(|n| worker(n, size)).collect(), Time::default());
    let blocks = PROMPT / u64::from(size);
    for n in 1..=WORKERS {
        let rank = WorkerRank::first(InstanceId(n));
        router.report(rank.instance, vec![(rank, Report::default())], &[], Time::default());
        // Each of 20 prompts: its first half on five workers, all of it on one of them.
        let own = n % 20;
        let depth = if n <= 20 { blocks } else { blocks / 2 };
        let blocks: Vec<_> = (0..depth).map(|block| hash(own, block)).collect();
        let digest =
            armature_contracts::kv_hash::set_digest(blocks.iter().map(|hash| (hash.0, Tier::Device as u8)));
        let mark = Mark { batch: 1, count: blocks.len() as u64, digest };
        router.kv_snapshot(rank, &Snapshot { mark, blocks: vec![(Tier::Device, blocks)] }).unwrap();
    }
    router
}

/// Microseconds of CPU time of this process.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let size = args.next().unwrap_or(16) as u32;
    let decisions = args.next().unwrap_or(1_000);
    let mut router = router(size);
    let blocks = PROMPT / u64::from(size);
    let question = Arc::new(Question {
        namespace: "default".into(),
        set: set(),
        prompt: Tokens(PROMPT),
        hashes: Some(("armature-xxh3-v1".into(), BlockSize(size))),
        choices: 1,
        migrated: false,
        expected_output: None,
        constraints: Constraints::default(),
    });
    // What comes over the wire is made before the clock runs; a tenth of the prompts ends otherwise than any before.
    let requests: Vec<_> = (0..decisions)
        .map(|n| {
            let own = if n % 10 == 0 { 1_000 + n } else { n % 20 };
            let prompt = (0..blocks).map(|block| hash(if block < blocks / 3 { n % 20 } else { own }, block));
            let key = ReservationKey { id: u128::from(n) + 1, attempt: 1 };
            Request { key, question: question.clone(), prompt: prompt.collect() }
        })
        .collect();
    let mut waiting = VecDeque::new();
    let mut matched = 0u64;
    let began = cpu();
    for (request, n) in requests.iter().zip(0u64..) {
        let now = Time(Duration::from_millis(10 * n));
        let answer = router.route(request, n, now).expect("somebody is free");
        matched += u64::from(answer.decode.matched.0);
        waiting.push_back((answer.decode.rank, request.key));
        if waiting.len() > 10
            && let Some((rank, key)) = waiting.pop_front()
        {
            let settled = Settled { key, settlement: Settlement::Finished, prefill_worker: None };
            router.report(rank.instance, vec![(rank, Report::default())], &[settled], now);
        }
    }
    let spent = cpu() - began;
    println!(
        "{decisions} decisions, {WORKERS} workers, {blocks} blocks of {size}: {:.1} us of CPU time each, {:.0} % of blocks matched",
        spent / decisions as f64,
        100.0 * matched as f64 / (decisions * blocks) as f64
    );
}
