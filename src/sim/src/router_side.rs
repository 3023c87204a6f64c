//! The real router: what it is told, and what it answers. Everything that depends on the router's own types is here.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, ReservationKey, WorkerRank};
use armature_kv_hash::HASH_SCHEME;
use armature_router::config::{Config, IndexConfig};
use armature_router::domain::explain::KeptDecisions;
use armature_router::domain::fit::{StepFit, StepModel};
use armature_router::domain::index::Parent;
use armature_router::domain::index::predicted::Predicted;
use armature_router::domain::index::segmented::SegmentedIndex;
use armature_router::domain::index::wire::{Batch, CheckedIndex, Event, Mark};
use armature_router::domain::load::Report;
use armature_router::domain::policy::{Constraints, Question, Refusal};
use armature_router::domain::reservations::{self, Reservations, Settled};
use armature_router::domain::router::{Request, RouteError, Router};
use armature_router::domain::step_cost::StepPrior;
use armature_router::domain::units::{BlockSize, Blocks, Millis, SequenceHash, Tier, Time, Tokens};
use armature_router::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};
use armature_worker::domain::kv_events::{KvBatch, KvEntry};
use armature_worker::domain::report::{LoadReport, Settlement};

use crate::draw::Draws;
use crate::settings::{InvalidSettings, Machine, Settings};

/// Explanations are for those who ask; nobody does here.
const KEPT_DECISION_BYTES: usize = 0;

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Aggregated,
    Prefill,
    Decode,
}

/// Where a request goes.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    /// Leads it.
    pub(crate) leader: usize,
    /// Compute its prompt, in order; empty: the leader does.
    pub(crate) prefill: Vec<usize>,
    pub(crate) local_prefill_forbidden: bool,
}

/// Why a request goes nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoute {
    /// Perhaps later.
    Later(Duration),
    /// Never.
    Never,
}

/// The router of a simulation.
pub(crate) struct RouterSide {
    router: Router,
    workers: Vec<Worker>,
    seeds: Draws,
    set: ServedSet,
    scheme: Arc<str>,
    block_size: BlockSize,
}

/// Workers are named by their number, from 1: 0 is no instance.
pub(crate) fn rank(worker: usize) -> WorkerRank {
    WorkerRank::first(InstanceId(worker as u64 + 1))
}

fn number(rank: WorkerRank) -> usize {
    rank.instance.0 as usize - 1
}

/// What a worker has measured of its own steps; of `steps` of them.
fn step_model(report: &LoadReport, steps: u64) -> StepModel {
    let milliseconds = |seconds: f64| seconds * 1e3;
    StepModel {
        base: milliseconds(report.step.constant),
        prefill_token: milliseconds(report.step.prefill_token),
        decode_row: milliseconds(report.step.decode_row),
        position: milliseconds(report.step.attention),
        observations: steps,
    }
}

impl RouterSide {
    pub(crate) fn new(settings: &Settings, roles: &[Role]) -> Result<Self, InvalidSettings> {
        let config = Config { policy: settings.policy.clone(), ..Config::default() };
        let valid = config
            .validate()
            .map_err(|error| InvalidSettings { setting: "policy", problem: error.to_string() })?;
        let mut seeds = Draws::new(settings.seed);
        let IndexConfig { max_bytes, predicted_entries, predicted_ms, .. } = config.index;
        let keys = std::array::from_fn(|_| seeds.next_u64());
        let index = CheckedIndex::new(Box::new(SegmentedIndex::new(max_bytes, keys)));
        let predicted =
            Predicted::new(predicted_entries, Duration::from_millis(predicted_ms), seeds.next_u64());
        let reservations = Reservations::new(valid.reservations);
        let kept = KeptDecisions::new(KEPT_DECISION_BYTES);
        let digest = Digest(Arc::new([1; 32]));
        let set = ServedSet { model: digest.clone(), tokenizer: digest.clone(), template: digest };
        let mut side = Self {
            router: Router::new(valid.settings, index, predicted, reservations, kept),
            workers: Vec::new(),
            seeds,
            scheme: HASH_SCHEME.into(),
            block_size: BlockSize(settings.machine.timing.block_size as u32),
            set,
        };
        side.workers = roles
            .iter()
            .enumerate()
            .map(|(number, role)| side.card(number, *role, &settings.machine))
            .collect();
        side.router.members(side.workers.clone(), Time::default());
        Ok(side)
    }

    fn card(&self, number: usize, role: Role, machine: &Machine) -> Worker {
        let (prefill, decode) = (machine.timing.prefill_ms, machine.timing.decode_ms);
        Worker {
            rank: rank(number),
            address: "mem:worker".into(),
            status: Status::Ready,
            namespace: "sim".into(),
            served_name: "sim".into(),
            set: self.set.clone(),
            roles: Roles {
                aggregated: role == Role::Aggregated,
                prefill: role == Role::Prefill,
                decode: role == Role::Decode,
            },
            engine: "sim".into(),
            labels: Arc::default(),
            context_length: Tokens((machine.blocks * machine.timing.block_size) as u64),
            block_size: self.block_size,
            kv_blocks: Blocks(machine.blocks as u32),
            spec_hash: "".into(),
            capabilities: Arc::default(),
            compat_key: Digest::default(),
            hash_scheme: self.scheme.clone(),
            limits: Limits {
                max_running: 0,
                max_waiting: 0,
                max_batched_tokens: machine.max_batched_tokens as u32,
            },
            weight: 1.0,
            prior: StepPrior {
                prefill: [prefill.quadratic, prefill.linear, prefill.constant],
                decode: [decode.quadratic, decode.linear, decode.constant],
                transfer_per_token: Millis(machine.transfer_per_token.as_secs_f64() * 1e3),
            },
            fit: StepFit::default(),
        }
    }

    /// Decides for `tokens` prompt tokens, those generated before a migration included.
    pub(crate) fn route(
        &mut self,
        key: ReservationKey,
        tokens: usize,
        prompt: Arc<[SequenceHash]>,
        migrated: bool,
        now: Duration,
    ) -> Result<Destination, NoRoute> {
        let question = Question {
            namespace: "sim".into(),
            set: self.set.clone(),
            prompt: Tokens(tokens as u64),
            hashes: Some((self.scheme.clone(), self.block_size)),
            choices: 1,
            migrated,
            expected_output: None,
            constraints: Constraints::default(),
        };
        let request = Request { key, question: Arc::new(question), prompt };
        let seed = self.seeds.next_u64();
        match self.router.route(&request, seed, Time(now)) {
            Ok(routed) => Ok(Destination {
                leader: number(routed.decode.rank),
                prefill: routed.prefill.iter().map(|target| number(target.rank)).collect(),
                local_prefill_forbidden: routed.local_prefill_forbidden,
            }),
            Err(RouteError::Refused(Refusal::Busy { retry_after })) => Err(NoRoute::Later(retry_after)),
            Err(RouteError::TooMany(_) | RouteError::NotHeld(_)) => {
                Err(NoRoute::Later(Duration::from_millis(100)))
            }
            Err(RouteError::Refused(_) | RouteError::Released) => Err(NoRoute::Never),
        }
    }

    /// Takes a worker's load report.
    pub(crate) fn report(
        &mut self,
        worker: usize,
        report: &LoadReport,
        kv_batch: u64,
        steps: u64,
        now: Duration,
    ) {
        let rank = rank(worker);
        let settled: Vec<Settled> = report
            .settled
            .iter()
            .map(|(key, settlement)| Settled {
                key: ReservationKey { id: key.id, attempt: key.attempt },
                settlement: match settlement {
                    Settlement::Admitted => reservations::Settlement::Admitted,
                    Settlement::Refused => reservations::Settlement::Refused,
                    Settlement::Finished => reservations::Settlement::Finished,
                },
                prefill_worker: None,
            })
            .collect();
        let report = Report {
            running: report.running as u32,
            waiting: report.waiting as u32,
            uncomputed: Tokens(report.uncomputed_prefill_tokens),
            active: Blocks(report.blocks_active as u32),
            cached: Blocks(report.blocks_cached as u32),
            free: Blocks(report.blocks_free as u32),
            victim_age: report.next_victim_age,
            draining: false,
            kv_batch,
            step_model: Some(step_model(report, steps)),
            warm_peers: Arc::new([]),
            received: Time(now),
        };
        self.router.report(rank.instance, vec![(rank, report)], &settled, Time(now));
    }

    /// Takes a batch of KV events.
    ///
    /// # Panics
    /// When the router does not believe it: every batch comes once and in order here.
    pub(crate) fn kv_batch(&mut self, worker: usize, batch: &KvBatch) {
        let mark = Mark { batch: batch.number, count: batch.count, digest: batch.digest };
        let hashes = |entries: &[KvEntry]| entries.iter().map(|(hash, _)| SequenceHash(hash.0)).collect();
        // As the worker's messages say it: what is gone before what has come, and no parent.
        let mut events = Vec::with_capacity(2);
        if !batch.removed.is_empty() {
            events.push(Event::Removed { tier: Tier::Device, blocks: hashes(&batch.removed) });
        }
        if !batch.stored.is_empty() {
            events.push(Event::Stored {
                tier: Tier::Device,
                parent: Parent::Root,
                blocks: hashes(&batch.stored),
            });
        }
        let taken = self.router.kv_batch(rank(worker), &Batch { mark, events });
        assert_eq!(taken, Ok(()), "the router and worker {worker} disagree on its blocks");
    }

    /// A worker is gone.
    pub(crate) fn lose(&mut self, worker: usize, now: Duration) {
        self.workers.retain(|known| known.rank != rank(worker));
        self.router.members(self.workers.clone(), Time(now));
    }

    /// A request is over, or its worker is gone.
    pub(crate) fn release(&mut self, key: ReservationKey, now: Duration) {
        self.router.release(&[key], Time(now));
    }

    /// Lets the index do what it has put off.
    pub(crate) fn tidy(&mut self) {
        self.router.tidy();
    }
}
