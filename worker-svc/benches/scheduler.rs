//! One scheduler step with 256 running sequences: plan, commit, effects. The engine costs nothing here; a step of none
//! is the baseline.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::ReservationKey;
use armature_worker::domain::request::{CacheRoot, Priority, RequestKind, StopRule, Submission};
use armature_worker::domain::sampled::Sampled;
use armature_worker::domain::scheduler::{Scheduler, SchedulerConfig, StepPlan, StepResult};
use armature_worker::domain::time::Time;
use criterion::{Criterion, criterion_group, criterion_main};

const RUNNING: u32 = 256;
const PROMPT: u32 = 512;
const BLOCK_SIZE: usize = 16;
const STEP: Duration = Duration::from_millis(10);

fn submission(id: u32, root: &Arc<CacheRoot>) -> Submission {
    Submission {
        reservation: ReservationKey { id: u128::from(id), attempt: 0 },
        kind: RequestKind::Local,
        prompt: (0..PROMPT).map(|token| id * 1000 + token).collect(),
        choices: Submission::fresh_choices(1),
        root: Arc::clone(root),
        stop: StopRule { max_tokens: u32::MAX, min_tokens: 0, stop_token_ids: Arc::from([]) },
        priority: Priority(0),
        migrated: false,
        deadline: None,
    }
}

/// Plans a step, and commits what an engine that costs nothing answers.
fn step(scheduler: &mut Scheduler, now: &mut Time) {
    let plan = scheduler.plan(*now);
    let result = result(&plan);
    *now = *now + STEP;
    scheduler.commit(plan, result, *now);
    black_box(scheduler.take_effects());
    while scheduler.poll_kv_events(*now).is_some() {}
}

fn result(plan: &StepPlan) -> StepResult {
    let sampled = |token| Sampled { token, logprob: -1.0, top: Vec::new() };
    let samples = plan.chunks.iter().flat_map(|chunk| {
        chunk.sample_choices.iter().map(|choice| (chunk.seq, *choice, sampled(chunk.start as u32)))
    });
    StepResult { samples: samples.collect(), elapsed: STEP, dropped: Vec::new() }
}

/// 256 sequences that decode, and room for as many tokens as any benchmark run asks for.
fn decoding() -> (Scheduler, Time) {
    let mut config = SchedulerConfig::new(65_536, BLOCK_SIZE, 1 << 20);
    config.step.target = Duration::from_secs(1000);
    let mut scheduler = Scheduler::new(config);
    let root = Arc::new(CacheRoot {
        model_digest: vec![1; 32],
        adapter_digest: Vec::new(),
        tenant: "bench".to_owned(),
        cache_salt: String::new(),
    });
    let mut now = Time::ZERO;
    for id in 0..RUNNING {
        scheduler.submit(submission(id, &root), now).expect("there is room");
    }
    loop {
        let plan = scheduler.plan(now);
        let decodes = plan.work.decode_rows;
        let result = result(&plan);
        now = now + STEP;
        scheduler.commit(plan, result, now);
        scheduler.take_effects();
        if decodes == u64::from(RUNNING) {
            return (scheduler, now);
        }
    }
}

fn decode_step(criterion: &mut Criterion) {
    let (mut scheduler, mut now) = decoding();
    criterion.bench_function("scheduler/decode_step_256", |bencher| {
        bencher.iter(|| step(&mut scheduler, &mut now));
    });
    let mut none = Scheduler::new(SchedulerConfig::new(65_536, BLOCK_SIZE, 1 << 20));
    criterion.bench_function("scheduler/empty_step", |bencher| {
        bencher.iter(|| step(&mut none, &mut now));
    });
    criterion.bench_function("scheduler/report_256", |bencher| {
        bencher.iter(|| black_box(scheduler.report(None, now)));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = decode_step
}
criterion_main!(benches);
