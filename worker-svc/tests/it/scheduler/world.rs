//! A deterministic engine, peer and client around the scheduler, which verify every read.
//!
//! Each KV slot is tagged with the chain hash of the tokens up to it; a chunk may only read slots with
//! the tags of its own tokens. The next token is a function of that chain, the choice and the position,
//! so that what a request must be told is known without any scheduler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use armature_worker::domain::ids::{BlockId, RequestId, ReservationKey, SeqId, WindowIndex};
use armature_worker::domain::kv_events::{KvBatch, KvEntry};
use armature_worker::domain::report::Settlement;
use armature_worker::domain::request::{
    CacheRoot, Failure, FinishReason, Priority, Refusal, RequestKind, ResumedChoice, StopRule, Submission,
    Usage,
};
use armature_worker::domain::sampled::Sampled;
use armature_worker::domain::scheduler::{
    Effect, Fallback, Scheduler, SchedulerConfig, StepPlan, StepResult,
};
use armature_worker::domain::time::Time;

/// Ends a choice, one token in this many.
const STOP_TOKEN: u32 = 0;
const VOCAB: u64 = 29;

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn root_tag(root: &CacheRoot) -> u64 {
    root.tenant.bytes().fold(7, |tag, byte| mix(tag, u64::from(byte)))
}

/// Tag of each position of `tokens`.
fn chain(root: &CacheRoot, tokens: &[u32]) -> Vec<u64> {
    let mut tag = root_tag(root);
    tokens
        .iter()
        .map(|token| {
            tag = mix(tag, u64::from(*token));
            tag
        })
        .collect()
}

fn next_token(last_tag: u64, choice: u32, position: usize) -> u32 {
    (mix(mix(last_tag, u64::from(choice)), position as u64) % VOCAB) as u32
}

pub(super) fn sampled(token: u32) -> Sampled {
    Sampled { token, logprob: -1.0, top: Vec::new() }
}

/// Tokens that a choice must generate after `generated`, and why it ends.
pub(super) fn oracle(
    root: &CacheRoot,
    prompt: &[u32],
    choice: &ResumedChoice,
    stop: &StopRule,
    context: usize,
) -> (Vec<u32>, FinishReason) {
    let mut tokens = prompt.to_vec();
    tokens.extend(&choice.generated);
    let mut generated = choice.generated.clone();
    loop {
        if let Some(last) = generated.last().copied() {
            if generated.len() >= stop.min_tokens as usize && stop.stop_token_ids.contains(&last) {
                return (generated, FinishReason::Stop(last));
            }
            if generated.len() >= stop.max_tokens as usize || tokens.len() >= context {
                return (generated, FinishReason::Length);
            }
        }
        let tag = *chain(root, &tokens).last().unwrap();
        let token = next_token(tag, choice.index, generated.len());
        tokens.push(token);
        generated.push(token);
    }
}

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

/// The peer's side of a landing transfer.
#[derive(Debug)]
struct Landing {
    from: usize,
    to: usize,
    begun: bool,
    first_tokens_sent: bool,
    complete: bool,
    windows: Vec<(std::ops::Range<usize>, Vec<BlockId>, bool)>,
    /// Windows may still be written: until the quarantine is released.
    broken: bool,
}

/// What a source has told of its KV.
#[derive(Debug, Default)]
struct SourceTold {
    computed_to: usize,
    blocks: Vec<BlockId>,
}

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) now: Time,
    pub(super) clients: BTreeMap<RequestId, Client>,
    slots: HashMap<(BlockId, usize), u64>,
    landings: BTreeMap<RequestId, Landing>,
    sources: BTreeMap<RequestId, SourceTold>,
    pub(super) plan: Option<StepPlan>,
    settled: BTreeMap<ReservationKey, Settlement>,
    next_reservation: u128,
    chunks_seen: u64,
    batches: Vec<Arc<KvBatch>>,
    kv_set: HashSet<KvEntry>,
    pub(super) arrived: BTreeMap<RequestId, Time>,
}

pub(super) fn config(blocks: usize, block_size: usize) -> SchedulerConfig {
    let mut config = SchedulerConfig::new(blocks, block_size, 4096);
    config.min_window_tokens = 2 * block_size;
    config.step.max_step = Duration::from_secs(5);
    config
}

pub(super) fn root(tenant: &str) -> Arc<CacheRoot> {
    Arc::new(CacheRoot {
        model_digest: vec![1; 32],
        adapter_digest: Vec::new(),
        tenant: tenant.to_owned(),
        cache_salt: String::new(),
    })
}

/// A prompt of `len` tokens that shares any shorter prefix with others of its family.
pub(super) fn prompt(family: u32, len: usize) -> Arc<[u32]> {
    (0..len).map(|i| 100 + (mix(u64::from(family), i as u64) % 1000) as u32).collect()
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

    fn block_size(&self) -> usize {
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

    pub(super) fn fail_step(&mut self) {
        let Some(plan) = self.plan.take() else { return };
        // A failed pass leaves garbage in what it wrote.
        let block_size = self.block_size();
        for chunk in &plan.chunks {
            for position in chunk.start..chunk.start + chunk.tokens.len() {
                self.slots.insert((chunk.blocks[position / block_size], position % block_size), 0xbad);
            }
        }
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

    fn break_landing(&mut self, request: RequestId, quarantined: Option<bool>) {
        let landing = self.landings.get_mut(&request).expect("aborted after admission");
        landing.broken = true;
        let writable = landing.windows.iter().any(|(.., landed)| !landed);
        if let Some(quarantined) = quarantined {
            assert_eq!(writable, quarantined, "quarantine is told");
        }
        if !writable {
            self.landings.remove(&request);
        }
    }

    fn source_told(&mut self, request: RequestId, computed_to: usize, blocks: Vec<BlockId>) {
        let told = self.sources.entry(request).or_default();
        assert!(computed_to >= told.computed_to && blocks.starts_with(&told.blocks), "told blocks stay");
        *told = SourceTold { computed_to, blocks };
        self.verify_source(request);
    }

    /// What a source has told is there, and stays.
    fn verify_source(&self, request: RequestId) {
        let Some(told) = self.sources.get(&request) else { return };
        let submission = &self.clients[&request].submission;
        let mut tokens = submission.prompt.to_vec();
        tokens.extend(&submission.choices[0].generated);
        let chained = chain(&submission.root, &tokens);
        for (position, tag) in chained.iter().enumerate().take(told.computed_to) {
            let slot = (told.blocks[position / self.block_size()], position % self.block_size());
            assert_eq!(self.slots.get(&slot), Some(tag), "pinned {slot:?} of {request:?} stays");
        }
    }

    /// The next thing that the prefill worker of a landing does.
    pub(super) fn advance_landing(&mut self, request: RequestId, with_first_tokens: bool, commit: bool) {
        let now = self.now;
        let block_size = self.block_size();
        let Some(landing) = self.landings.get_mut(&request).filter(|landing| !landing.broken) else { return };
        let submission = &self.clients[&request].submission;
        let mut tokens = submission.prompt.to_vec();
        tokens.extend(&submission.choices[0].generated);
        let chained = chain(&submission.root, &tokens);
        if !landing.begun {
            landing.begun = true;
            self.scheduler.landing_begin(request, now).unwrap();
        } else if landing.complete {
            self.landings.remove(&request);
            if commit {
                let _ = self.scheduler.landing_committed(request, now);
            }
        } else if let Some(index) = landing.windows.iter().position(|(.., landed)| !landed) {
            let (range, blocks, landed) = &mut landing.windows[index];
            *landed = true;
            for position in range.clone() {
                let block = blocks[(position - range.start) / block_size];
                self.slots.insert((block, position % block_size), chained[position]);
            }
            self.scheduler.landing_landed(request, WindowIndex(index as u32), now).unwrap();
        } else if !landing.first_tokens_sent {
            landing.first_tokens_sent = true;
            if with_first_tokens {
                let position = submission.choices[0].generated.len();
                let last = *chained.last().unwrap();
                let first = submission
                    .choices
                    .iter()
                    .map(|choice| (choice.index, sampled(next_token(last, choice.index, position))));
                let first = first.collect();
                self.scheduler.landing_first_tokens(request, first, now).unwrap();
            }
        } else if landing.windows.last().is_some_and(|(tokens, ..)| tokens.end == landing.to) {
            landing.complete = true;
            self.scheduler.landing_complete(request, now).unwrap();
        }
        self.settle();
    }

    /// Sends the first tokens early: before any window.
    pub(super) fn first_tokens_early(&mut self, request: RequestId, keep: usize) {
        let Some(landing) = self.landings.get_mut(&request) else { return };
        if landing.broken || landing.first_tokens_sent || landing.complete {
            return;
        }
        landing.first_tokens_sent = true;
        let submission = &self.clients[&request].submission;
        let mut tokens = submission.prompt.to_vec();
        tokens.extend(&submission.choices[0].generated);
        let last = *chain(&submission.root, &tokens).last().unwrap();
        let position = submission.choices[0].generated.len();
        let first: Vec<_> = submission
            .choices
            .iter()
            .take(keep)
            .map(|choice| (choice.index, sampled(next_token(last, choice.index, position))))
            .collect();
        self.scheduler.landing_first_tokens(request, first, self.now).unwrap();
        self.settle();
    }

    pub(super) fn fail_landing(&mut self, request: RequestId, local: bool) {
        let fallback = if local { Fallback::Local } else { Fallback::Fail("peer died".to_owned()) };
        let admitted =
            self.landings.get(&request).is_some_and(|landing| !landing.broken && !landing.complete);
        if self.scheduler.landing_failed(request, fallback, self.now).is_ok() && admitted {
            self.break_landing(request, None);
        }
        self.settle();
    }

    /// The broken transfers' last writes arrive, then the proof that no more will.
    pub(super) fn release_quarantine(&mut self, request: RequestId) {
        let Some(landing) = self.landings.get(&request).filter(|landing| landing.broken) else { return };
        for (_, blocks, _) in landing.windows.iter().filter(|(.., landed)| !landed) {
            for block in blocks {
                for slot in 0..self.scheduler.config().block_size {
                    self.slots.insert((*block, slot), 0xdead);
                }
            }
        }
        self.landings.remove(&request);
        self.scheduler.quarantine_released(request, self.now);
        self.settle();
    }

    pub(super) fn release_source(&mut self, request: RequestId) {
        self.verify_source(request);
        self.sources.remove(&request);
        self.scheduler.source_released(request, self.now);
        self.settle();
    }

    pub(super) fn landings(&self) -> Vec<RequestId> {
        self.landings.keys().copied().collect()
    }

    pub(super) fn sources(&self) -> Vec<RequestId> {
        self.sources.keys().copied().collect()
    }

    /// Reads the event log and replays it; `snapshot`: compares with a snapshot, too.
    pub(super) fn replay_events(&mut self, snapshot: bool) {
        let mut batches = Vec::new();
        while let Some(batch) = self.scheduler.poll_kv_events(self.now) {
            batches.push(batch);
        }
        let expected = snapshot.then(|| {
            let (snapshot, rest) = self.scheduler.kv_events().snapshot(self.now);
            batches.extend(rest);
            snapshot
        });
        for batch in batches {
            assert_eq!(batch.number, self.batches.len() as u64 + 1, "numbered without a hole");
            for entry in &batch.stored {
                assert!(self.kv_set.insert(*entry), "stored on absent -> present");
            }
            for entry in &batch.removed {
                assert!(self.kv_set.remove(entry), "removed on present -> absent");
            }
            let pairs = self.kv_set.iter().map(|(hash, tier)| (hash.0, tier.0));
            assert_eq!(batch.digest, armature_kv_hash::set_digest(pairs), "digest after the batch");
            assert_eq!(batch.count, self.kv_set.len() as u64, "count after the batch");
            self.batches.push(batch);
        }
        if let Some(expected) = expected {
            let mut entries: Vec<KvEntry> = self.kv_set.iter().copied().collect();
            entries.sort_unstable();
            assert_eq!(entries, expected.entries);
            assert_eq!(expected.at, self.batches.len() as u64);
        }
    }

    /// Peers and clients do their part until nothing is left; every request has ended then.
    pub(super) fn finish_everything(&mut self) {
        for _ in 0..20_000 {
            for request in self.landings() {
                self.release_quarantine(request);
                self.advance_landing(request, true, true);
            }
            if !self.step() {
                for request in self.sources() {
                    self.release_source(request);
                }
                if self.scheduler.is_idle() && self.landings.is_empty() {
                    return self.assert_at_rest();
                }
            }
        }
        panic!(
            "requests never end: {:?}",
            self.clients.values().filter(|c| !c.is_over()).collect::<Vec<_>>()
        );
    }

    pub(super) fn assert_at_rest(&mut self) {
        self.replay_events(true);
        let report = self.scheduler.report(None, self.now);
        let config = self.scheduler.config();
        assert_eq!((report.running, report.waiting, report.uncomputed_prefill_tokens), (0, 0, 0));
        assert_eq!((report.blocks_active, report.blocks_promised, report.blocks_quarantined), (0, 0, 0));
        assert_eq!(report.blocks_cached + report.blocks_free, config.blocks);
        assert_eq!(report.blocks_cached, self.kv_set.len(), "what is cached is what was told");
        assert!(self.settled.values().all(|state| *state != Settlement::Admitted));
        assert!(self.clients.values().all(Client::is_over));
    }

    /// A choice that ended by itself has exactly the tokens of the oracle; any other has a prefix of them.
    pub(super) fn assert_outputs(&self) {
        for (id, client) in &self.clients {
            for choice in &client.submission.choices {
                let submission = &client.submission;
                let context = self.scheduler.context_length();
                let (tokens, finish) =
                    oracle(&submission.root, &submission.prompt, choice, &submission.stop, context);
                let got = &client.generated[&choice.index];
                assert!(tokens.starts_with(got), "{id:?}/{}: {got:?} of {tokens:?}", choice.index);
                let ended = client.ended.get(&choice.index);
                let by_itself = matches!(ended, Some(FinishReason::Stop(_) | FinishReason::Length));
                if by_itself && !matches!(submission.kind, RequestKind::Source { .. }) {
                    assert_eq!((got, ended), (&tokens, Some(&finish)), "{id:?}/{}", choice.index);
                }
            }
        }
    }
}
