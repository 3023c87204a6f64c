//! A deterministic engine, peer and client around the scheduler, which verify every read.
//!
//! Each KV slot is tagged with the chain hash of the tokens up to it; a chunk may only read slots with
//! the tags of its own tokens. The next token is a function of that chain, the choice and the position,
//! so that what a request must be told is known without any scheduler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::{BlockId, RequestId, ReservationKey, SeqId};
use armature_worker::domain::kv_events::{KvBatch, KvEntry};
use armature_worker::domain::report::Settlement;
use armature_worker::domain::request::{
    Failure, FinishReason, Priority, Refusal, RequestKind, StopRule, Submission, Usage,
};
use armature_worker::domain::sampled::Sampled;
use armature_worker::domain::scheduler::{
    Effect, PlannedChunk, Scheduler, SchedulerConfig, StepPlan, StepResult,
};
use armature_worker::domain::time::Time;

use super::oracle::{STOP_TOKEN, chain, next_token, root, sampled};
use super::peer::{Landing, SourceTold};

/// What is known of a request from outside.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) submission: Submission,
    pub(super) generated: BTreeMap<u32, Vec<u32>>,
    pub(super) ended: BTreeMap<u32, FinishReason>,
    pub(super) usage: Option<Usage>,
    pub(super) failure: Option<Failure>,
    /// Order of its first chunk in all steps.
    pub(super) first_chunk: Option<u64>,
}

impl Client {
    pub(super) fn is_over(&self) -> bool {
        self.usage.is_some()
    }
}

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) now: Time,
    pub(super) clients: BTreeMap<RequestId, Client>,
    pub(super) slots: HashMap<(BlockId, usize), u64>,
    pub(super) landings: BTreeMap<RequestId, Landing>,
    pub(super) sources: BTreeMap<RequestId, SourceTold>,
    pub(super) plan: Option<StepPlan>,
    pub(super) settled: BTreeMap<ReservationKey, Settlement>,
    next_reservation: u128,
    chunks_seen: u64,
    pub(super) batches: Vec<Arc<KvBatch>>,
    pub(super) kv_set: HashSet<KvEntry>,
    pub(super) arrived: BTreeMap<RequestId, Time>,
}

impl World {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        Self {
            scheduler: Scheduler::new(config),
            now: Time::ZERO,
            clients: BTreeMap::new(),
            slots: HashMap::new(),
            landings: BTreeMap::new(),
            sources: BTreeMap::new(),
            plan: None,
            settled: BTreeMap::new(),
            next_reservation: 1,
            chunks_seen: 0,
            batches: Vec::new(),
            kv_set: HashSet::new(),
            arrived: BTreeMap::new(),
        }
    }

    pub(super) fn submission(&mut self, prompt: Arc<[u32]>, n: u32, max_tokens: u32) -> Submission {
        let reservation = ReservationKey { id: self.next_reservation, attempt: 0 };
        self.next_reservation += 1;
        Submission {
            reservation,
            kind: RequestKind::Local,
            prompt,
            choices: Submission::fresh_choices(n),
            root: root("a"),
            stop: StopRule { max_tokens, min_tokens: 0, stop_token_ids: Arc::from([STOP_TOKEN]) },
            priority: Priority(0),
            migrated: false,
            deadline: None,
        }
    }

    pub(super) fn submit(&mut self, submission: Submission) -> Result<RequestId, Refusal> {
        let id = self.scheduler.submit(submission.clone(), self.now)?;
        let generated =
            submission.choices.iter().map(|choice| (choice.index, choice.generated.clone())).collect();
        let client = Client {
            submission,
            generated,
            ended: BTreeMap::new(),
            usage: None,
            failure: None,
            first_chunk: None,
        };
        assert!(self.clients.insert(id, client).is_none(), "request ids are unique");
        self.arrived.insert(id, self.now);
        self.settle();
        Ok(id)
    }

    pub(super) fn block_size(&self) -> usize {
        self.scheduler.config().block_size
    }

    /// Plans, if nothing is in flight. Whether there is something to compute.
    pub(super) fn start_step(&mut self) -> bool {
        if self.plan.is_some() {
            return true;
        }
        let plan = self.scheduler.plan(self.now);
        self.settle();
        if plan.is_empty() {
            return false;
        }
        self.plan = Some(plan);
        self.check();
        true
    }

    /// The pass: copies, reads, writes.
    fn compute(&mut self, plan: &StepPlan) -> Vec<(SeqId, u32, Sampled)> {
        let block_size = self.block_size();
        for copy in &plan.copies {
            for slot in 0..copy.tokens {
                let tag = self.slots.get(&(copy.from, slot)).copied();
                let tag = tag.unwrap_or_else(|| panic!("copied slot {slot} of {:?} is complete", copy.from));
                self.slots.insert((copy.to, slot), tag);
            }
        }
        let mut written = HashSet::new();
        let mut samples = Vec::new();
        let mut tags = Vec::new();
        for chunk in &plan.chunks {
            self.chunks_seen += 1;
            let client = self.clients.get_mut(&chunk.request).expect("a chunk belongs to a request");
            client.first_chunk.get_or_insert(self.chunks_seen);
            if matches!(client.submission.kind, RequestKind::Source { .. }) && !client.is_over() {
                // The peer reads layer by layer, from within the pass on.
                self.sources.entry(chunk.request).or_default().blocks = chunk.blocks.clone();
            }
            // A request that ended in flight may be gone; its rows are computed for nothing.
            let Some(history) = self.scheduler.history(chunk.seq) else { panic!("in flight") };
            let mut tokens = history.prompt.to_vec();
            tokens.extend(history.generated);
            let end = chunk.start + chunk.tokens.len();
            assert_eq!(chunk.tokens, tokens[chunk.start..end], "the chunk is the sequence's tokens");
            assert!(chunk.blocks.len() * block_size >= end, "the table covers the chunk");
            assert!(chunk.sample_choices.is_empty() || end == tokens.len(), "sampled at the end only");
            let chained = chain(&client.submission.root, &tokens);
            for (position, tag) in chained.iter().enumerate().take(end).skip(chunk.start) {
                let slot = (chunk.blocks[position / block_size], position % block_size);
                assert!(written.insert(slot), "{slot:?} has two writers in one step");
                self.slots.insert(slot, *tag);
            }
            for choice in &chunk.sample_choices {
                let token = next_token(chained[end - 1], *choice, history.generated.len());
                samples.push((chunk.seq, *choice, sampled(token)));
            }
            tags.push((chunk, chained));
        }
        for (chunk, chained) in tags {
            for (position, tag) in chained.iter().enumerate().take(chunk.start + chunk.tokens.len()) {
                let slot = (chunk.blocks[position / block_size], position % block_size);
                assert_eq!(
                    self.slots.get(&slot),
                    Some(tag),
                    "{:?} reads position {position} of {:?} from {slot:?}",
                    chunk.seq,
                    chunk.request,
                );
            }
        }
        samples
    }

    /// Computes and commits the planned step; sequences in `dropped` and samples in `unsampled` (both by
    /// index, wrapping) are lost on the way.
    pub(super) fn finish_step(&mut self, dropped: Option<usize>, unsampled: Option<usize>) {
        let Some(plan) = self.plan.take() else { return };
        let mut samples = self.compute(&plan);
        let dropped: Vec<SeqId> = dropped
            .filter(|_| !plan.chunks.is_empty())
            .map(|index| plan.chunks[index % plan.chunks.len()].seq)
            .into_iter()
            .collect();
        samples.retain(|(seq, ..)| !dropped.contains(seq));
        // What was dropped between layers is in no state to be read.
        for chunk in plan.chunks.iter().filter(|chunk| dropped.contains(&chunk.seq)) {
            self.spoil(chunk);
        }
        if let Some(index) = unsampled
            && !samples.is_empty()
        {
            samples.remove(index % samples.len());
        }
        let tokens: usize = plan.chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let elapsed = Duration::from_micros(500 + 300 * tokens as u64);
        self.now = self.now + elapsed;
        self.scheduler.commit(plan, StepResult { samples, elapsed, dropped }, self.now);
        self.settle();
    }

    fn spoil(&mut self, chunk: &PlannedChunk) {
        let block_size = self.block_size();
        for position in chunk.start..chunk.start + chunk.tokens.len() {
            self.slots.insert((chunk.blocks[position / block_size], position % block_size), 0xbad);
        }
    }

    pub(super) fn fail_step(&mut self) {
        let Some(plan) = self.plan.take() else { return };
        // A failed pass leaves garbage in what it wrote.
        plan.chunks.iter().for_each(|chunk| self.spoil(chunk));
        self.scheduler.fail_step(plan, "out of luck", self.now);
        self.settle();
    }

    /// A whole step. Whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let some = self.start_step();
        self.finish_step(None, None);
        some
    }

    /// `count` steps, or as many as there is something to compute.
    pub(super) fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Steps until nothing can be computed.
    pub(super) fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the scheduler never comes to rest");
    }

    /// Takes in effects and verifies all invariants.
    pub(super) fn settle(&mut self) {
        for effect in self.scheduler.take_effects() {
            self.apply(effect);
        }
        self.check();
    }

    pub(super) fn check(&self) {
        if let Err(broken) = self.scheduler.check() {
            panic!("{broken}");
        }
    }

    fn client(&mut self, id: RequestId) -> &mut Client {
        let client = self.clients.get_mut(&id).expect("effects belong to accepted requests");
        assert!(!client.is_over(), "{id:?} has ended: nothing is told afterwards");
        client
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Settled { key, settlement } => {
                let before = self.settled.insert(key, settlement);
                let legal = match settlement {
                    Settlement::Admitted | Settlement::Refused => before.is_none(),
                    Settlement::Finished => before == Some(Settlement::Admitted),
                };
                assert!(legal, "{key:?}: {before:?} -> {settlement:?}");
            }
            Effect::Token { request, choice, position, sampled, finish } => {
                let client = self.client(request);
                assert!(!client.ended.contains_key(&choice), "no token after the end");
                let generated = client.generated.get_mut(&choice).expect("a choice of the request");
                assert_eq!(generated.len(), position as usize, "tokens come once and in order");
                generated.push(sampled.token);
                if let Some(finish) = finish {
                    client.ended.insert(choice, finish);
                }
            }
            Effect::ChoiceEnded { request, choice, finish } => {
                assert!(self.client(request).ended.insert(choice, finish).is_none(), "ends once");
            }
            Effect::Finished { request, usage } => {
                let client = self.client(request);
                let all = client.submission.choices.iter().all(|c| client.ended.contains_key(&c.index));
                assert!(all, "{request:?} finishes when every choice has");
                client.usage = Some(usage);
            }
            Effect::Failed { request, failure, usage } => {
                let client = self.client(request);
                client.failure = Some(failure);
                client.usage = Some(usage);
            }
            Effect::LandingAdmitted { request, from_token, prompt_len } => {
                let landing = Landing {
                    from: from_token,
                    to: prompt_len,
                    begun: false,
                    first_tokens_sent: false,
                    complete: false,
                    windows: Vec::new(),
                    broken: false,
                };
                assert!(self.landings.insert(request, landing).is_none(), "admitted once");
            }
            Effect::Granted { request, window, tokens, blocks } => {
                for block in &blocks {
                    for slot in 0..self.scheduler.config().block_size {
                        self.slots.remove(&(*block, slot));
                    }
                }
                let landing = self.landings.get_mut(&request).expect("granted after admission");
                assert!(landing.begun && !landing.broken, "granted while open");
                assert_eq!(window.0 as usize, landing.windows.len(), "windows in order");
                let expected = landing.windows.last().map_or(landing.from, |(tokens, ..)| tokens.end);
                assert_eq!(tokens.start, expected, "windows without a hole");
                landing.windows.push((tokens, blocks, false));
                let open: usize = self
                    .landings
                    .values()
                    .filter(|landing| !landing.broken)
                    .flat_map(|landing| &landing.windows)
                    .filter(|(.., landed)| !landed)
                    .map(|(_, blocks, _)| blocks.len())
                    .sum();
                let config = self.scheduler.config();
                assert!(open <= (config.blocks / 4).max(1), "at most a quarter of the pool is granted");
            }
            Effect::LandingAbort { request, quarantined } => self.break_landing(request, Some(quarantined)),
            Effect::SourceAdmitted { request, computed_to, blocks } => {
                self.source_told(request, computed_to, blocks);
            }
            Effect::SourceProgress { request, computed_to, blocks } => {
                self.source_told(request, computed_to, blocks);
            }
            Effect::FirstTokens { request, tokens } => {
                let client = self.client(request);
                for (choice, sampled) in tokens {
                    client.generated.get_mut(&choice).expect("a choice").push(sampled.token);
                }
                for choice in &client.submission.choices {
                    client.ended.insert(choice.index, FinishReason::Length);
                }
            }
        }
    }
}
