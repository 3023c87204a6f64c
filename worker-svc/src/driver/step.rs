//! The engine thread: plan, copy, forward pass, sampling, commit.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::{Core, Driver, Event, LayerReady};
use crate::domain::ids::{BlockId, SeqId};
use crate::domain::sampling::{self, Draw, History, SamplingParams, Scratch};
use crate::domain::scheduler::{PlannedChunk, StepPlan, StepResult};
use crate::kv_memory::KvMemory;
use crate::ports::{Chunk, Engine, EngineError, StepOutput, StepWatch};

/// Longest sleep of an idle engine thread: it wakes for work at once, and this often for nothing.
const IDLE: Duration = Duration::from_secs(1);

/// Body of the engine thread.
pub(super) fn run(driver: &Driver, mut engine: Box<dyn Engine>) {
    let mut scratch = Scratch::default();
    while let Some(plan) = next_plan(driver) {
        let watch = PassWatch::of(&plan, &driver.lock());
        let start = Instant::now();
        if driver.poison {
            poison_fresh(&driver.kv, &plan);
        }
        for copy in &plan.copies {
            driver.kv.copy_slots(copy.from, copy.to, copy.tokens);
        }
        let (outcome, dropped) = pass(driver, engine.as_mut(), &plan, watch);
        match outcome {
            Ok(output) => finish(driver, plan, output, dropped, start, &mut scratch),
            Err(error) => {
                let fatal = matches!(error, EngineError::Failed(_));
                tracing::error!(%error, fatal, "engine pass failed");
                let mut core = driver.lock();
                core.scheduler.fail_step(plan, &error.to_string(), driver.now());
                if fatal {
                    core.scheduler.drain(driver.now());
                    core.scheduler.migrate_all(driver.now());
                }
                driver.dispatch(&mut core);
                drop(core);
                if fatal {
                    driver.failed.send_replace(Some(error.to_string()));
                    return;
                }
            }
        }
    }
}

/// Waits for a step to compute; `None` when the thread shall end.
fn next_plan(driver: &Driver) -> Option<StepPlan> {
    let mut core = driver.lock();
    loop {
        if core.stopping {
            return None;
        }
        let plan = core.scheduler.plan(driver.now());
        while core.scheduler.poll_kv_events(driver.now()).is_some() {}
        driver.dispatch(&mut core);
        if !plan.is_empty() {
            return Some(plan);
        }
        let sleep = core.scheduler.next_wakeup().since(driver.now()).min(IDLE);
        // A wake-up that is due already still yields the lock for a moment.
        let sleep = sleep.max(Duration::from_millis(1));
        core = driver.wake.wait_timeout(core, sleep).expect("scheduler state is sound").0;
    }
}

/// Overwrites the blocks that this pass is the first to write for their sequence, whatever they held before.
fn poison_fresh(kv: &KvMemory, plan: &StepPlan) {
    for copy in &plan.copies {
        kv.poison(copy.to);
    }
    let block_size = kv.geometry().block_size;
    for chunk in &plan.chunks {
        for block in chunk.blocks.iter().skip(chunk.start.div_ceil(block_size)) {
            kv.poison(*block);
        }
    }
}

/// One forward pass. A panic of the engine is its failure, not the process's.
fn pass(
    driver: &Driver,
    engine: &mut dyn Engine,
    plan: &StepPlan,
    mut watch: PassWatch,
) -> (Result<StepOutput, EngineError>, Vec<SeqId>) {
    if plan.chunks.is_empty() {
        return (Ok(StepOutput::default()), Vec::new());
    }
    let chunks: Vec<Chunk<'_>> = plan
        .chunks
        .iter()
        .map(|chunk| Chunk {
            seq: chunk.seq,
            tokens: &chunk.tokens,
            start: chunk.start,
            blocks: &chunk.blocks,
            wants_logits: !chunk.sample_choices.is_empty(),
        })
        .collect();
    let result = catch_unwind(AssertUnwindSafe(|| engine.forward(&chunks, &driver.kv, &mut watch)))
        .unwrap_or_else(|panic| Err(EngineError::Failed(panic_text(&*panic))));
    let dropped = plan.chunks.iter().map(|chunk| chunk.seq).filter(|seq| !watch.is_live(*seq)).collect();
    (result, dropped)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".into())
}

/// Samples what the pass computed and commits it.
fn finish(
    driver: &Driver,
    plan: StepPlan,
    output: StepOutput,
    mut dropped: Vec<SeqId>,
    start: Instant,
    scratch: &mut Scratch,
) {
    let mut samples = Vec::new();
    for (chunk, logits) in plan.chunks.iter().zip(&output.logits) {
        if chunk.sample_choices.is_empty() || dropped.contains(&chunk.seq) {
            continue;
        }
        // A sequence that was cancelled between the last layer and here has no logits or no history.
        let (Some(logits), Some(draws)) = (logits, DrawsOf::chunk(chunk, &driver.lock())) else {
            dropped.push(chunk.seq);
            continue;
        };
        for choice in &chunk.sample_choices {
            match draws.sample(logits, *choice, scratch) {
                Ok(sampled) => samples.push((chunk.seq, *choice, sampled)),
                Err(error) => tracing::error!(%error, choice, "sampling failed"),
            }
        }
    }
    let result = StepResult { samples, elapsed: start.elapsed(), dropped };
    let mut core = driver.lock();
    core.counters.engine_tokens += output.computed_tokens;
    core.counters.steps += 1;
    core.scheduler.commit(plan, result, driver.now());
    driver.dispatch(&mut core);
}

/// What sampling a chunk needs, copied out of the lock.
struct DrawsOf {
    params: Arc<SamplingParams>,
    seed: u64,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    position: u32,
}

impl DrawsOf {
    fn chunk(chunk: &PlannedChunk, core: &Core) -> Option<Self> {
        let request = core.requests.get(&chunk.request)?;
        let history = core.scheduler.history(chunk.seq)?;
        let params = &request.params;
        // Only penalties look at the tokens themselves.
        let repeats = params.repetition_penalty != 1.0;
        let penalises = repeats || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        Some(Self {
            params: Arc::clone(params),
            seed: request.seed,
            prompt: if repeats { history.prompt.to_vec() } else { Vec::new() },
            generated: if penalises || params.min_tokens > 0 {
                history.generated.to_vec()
            } else {
                Vec::new()
            },
            position: history.generated.len() as u32,
        })
    }

    fn sample(
        &self,
        logits: &[f32],
        choice: u32,
        scratch: &mut Scratch,
    ) -> Result<crate::domain::sampled::Sampled, sampling::SampleError> {
        let history = History { prompt: &self.prompt, generated: &self.generated };
        let draw = Draw { seed: self.seed, choice, position: self.position };
        sampling::sample(logits, &self.params, history, draw, scratch)
    }
}

/// Answers the engine between layers, and tells sources of each finished layer.
struct PassWatch {
    live: HashMap<SeqId, Arc<AtomicBool>>,
    sources: Vec<SourceChunk>,
}

struct SourceChunk {
    seq: SeqId,
    events: mpsc::UnboundedSender<Event>,
    tokens: std::ops::Range<usize>,
    blocks: Vec<BlockId>,
}

impl PassWatch {
    fn of(plan: &StepPlan, core: &Core) -> Self {
        let mut live = HashMap::with_capacity(plan.chunks.len());
        let mut sources = Vec::new();
        for chunk in &plan.chunks {
            let Some(request) = core.requests.get(&chunk.request) else { continue };
            live.insert(chunk.seq, Arc::clone(&request.live));
            if request.is_source {
                sources.push(SourceChunk {
                    seq: chunk.seq,
                    events: request.events.clone(),
                    tokens: chunk.start..chunk.start + chunk.tokens.len(),
                    blocks: chunk.blocks.clone(),
                });
            }
        }
        Self { live, sources }
    }
}

impl StepWatch for PassWatch {
    fn layer_done(&mut self, layer: usize) {
        for source in &self.sources {
            if self.is_live(source.seq) {
                let ready =
                    LayerReady { layer, tokens: source.tokens.clone(), blocks: source.blocks.clone() };
                let _ = source.events.send(Event::Layer(ready));
            }
        }
    }

    fn is_live(&self, seq: SeqId) -> bool {
        self.live.get(&seq).is_some_and(|live| live.load(Ordering::Acquire))
    }
}
