//! The inputs of a decision as a protobuf message. Fields are only added; a file says everything that its decisions depend on.

use std::sync::Arc;
use std::time::Duration;

use armature_contracts::ids::{InstanceId, WorkerRank};
use prost::Message;

use crate::domain::explain::DecisionNumber;
use crate::domain::fit::{StepFit, StepModel, Trusted};
use crate::domain::load::Load;
use crate::domain::policy::{
    Adapter, Candidate, Constraints, Inputs, PolicyKind, PrefillChoice, Question, SessionKey, Settings,
};
use crate::domain::step_cost::StepPrior;
use crate::domain::units::{BlockSize, Blocks, Micros, Millis, Tokens};
use crate::domain::worker::{Digest, Limits, Roles, ServedSet, Status, Worker};

/// A recorded decision.
#[derive(Clone, PartialEq, Message)]
pub struct Decision {
    /// Its number in its router.
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(fixed64, tag = "2")]
    seed: u64,
    #[prost(uint64, tag = "3")]
    turn: u64,
    #[prost(message, required, tag = "4")]
    settings: RecordedSettings,
    #[prost(message, required, tag = "5")]
    question: RecordedQuestion,
    #[prost(message, repeated, tag = "6")]
    candidates: Vec<RecordedCandidate>,
    #[prost(string, repeated, tag = "7")]
    topology: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RecordedSettings {
    #[prost(string, tag = "1")]
    policy: String,
    /// kappa, kappa_prefill, eta, eviction_age, staleness, topology_penalty, cold_transfer, temperature.
    #[prost(double, repeated, tag = "2")]
    weights: Vec<f64>,
    #[prost(uint64, tag = "3")]
    expected_output: u64,
    #[prost(bool, tag = "4")]
    local_prefill: bool,
    #[prost(bool, tag = "5")]
    prefer_remote: bool,
    #[prost(bool, tag = "6")]
    mix_revisions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RecordedQuestion {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(message, required, tag = "2")]
    set: RecordedSet,
    #[prost(uint64, tag = "3")]
    prompt: u64,
    #[prost(string, optional, tag = "4")]
    hash_scheme: Option<String>,
    #[prost(uint32, tag = "5")]
    block_size: u32,
    #[prost(uint32, tag = "6")]
    choices: u32,
    #[prost(bool, tag = "7")]
    migrated: bool,
    #[prost(uint64, optional, tag = "8")]
    expected_output: Option<u64>,
    #[prost(btree_map = "string, string", tag = "9")]
    labels: std::collections::BTreeMap<String, String>,
    #[prost(message, optional, tag = "10")]
    pin_decode: Option<Rank>,
    #[prost(message, optional, tag = "11")]
    pin_prefill: Option<Rank>,
    #[prost(message, repeated, tag = "12")]
    allow: Vec<Rank>,
    #[prost(message, repeated, tag = "13")]
    exclude: Vec<Rank>,
    /// 0 by cost, 1 remote, 2 local.
    #[prost(uint32, tag = "14")]
    prefill: u32,
    #[prost(string, optional, tag = "15")]
    adapter: Option<String>,
    #[prost(fixed64, optional, tag = "16")]
    session: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct RecordedSet {
    #[prost(bytes = "vec", tag = "1")]
    model: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    tokenizer: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    template: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Rank {
    #[prost(fixed64, tag = "1")]
    instance: u64,
    #[prost(uint32, tag = "2")]
    dp_rank: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RecordedCandidate {
    #[prost(message, required, tag = "1")]
    rank: Rank,
    /// 0 ready, 1 suspect, 2 starting, 3 draining.
    #[prost(uint32, tag = "2")]
    status: u32,
    /// 1 aggregated, 2 prefill, 4 decode.
    #[prost(uint32, tag = "3")]
    roles: u32,
    #[prost(string, tag = "4")]
    engine: String,
    #[prost(btree_map = "string, string", tag = "5")]
    labels: std::collections::BTreeMap<String, String>,
    #[prost(uint64, tag = "6")]
    context_length: u64,
    #[prost(uint32, tag = "7")]
    block_size: u32,
    #[prost(uint32, tag = "8")]
    kv_blocks: u32,
    #[prost(string, tag = "9")]
    spec_hash: String,
    #[prost(string, repeated, tag = "10")]
    capabilities: Vec<String>,
    #[prost(bytes = "vec", tag = "11")]
    compat_key: Vec<u8>,
    #[prost(string, tag = "12")]
    hash_scheme: String,
    /// max_running, max_waiting, max_batched_tokens.
    #[prost(uint32, repeated, tag = "13")]
    limits: Vec<u32>,
    #[prost(double, tag = "14")]
    weight: f64,
    /// Prefill a2, a1, a0, decode d2, d1, d0, transfer per token.
    #[prost(double, repeated, tag = "15")]
    prior: Vec<f64>,
    #[prost(message, optional, tag = "16")]
    fit_prefill: Option<Fit>,
    #[prost(message, optional, tag = "17")]
    fit_decode: Option<Fit>,
    #[prost(uint32, tag = "18")]
    matched: u32,
    #[prost(fixed64, repeated, tag = "19")]
    warm_peers: Vec<u64>,
    #[prost(bool, tag = "20")]
    reported: bool,
    /// Nanoseconds.
    #[prost(uint64, tag = "21")]
    age: u64,
    #[prost(uint32, tag = "22")]
    requests: u32,
    #[prost(uint64, tag = "23")]
    uncomputed: u64,
    /// Microseconds.
    #[prost(uint64, tag = "24")]
    pending: u64,
    #[prost(uint64, tag = "25")]
    active: u64,
    #[prost(bool, tag = "26")]
    roomy: bool,
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "27")]
    victim_age: Option<u64>,
    #[prost(uint32, tag = "28")]
    waiting: u32,
    #[prost(uint32, tag = "29")]
    unsettled: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Fit {
    /// share, base, prefill_token, decode_row, position.
    #[prost(double, repeated, tag = "1")]
    values: Vec<f64>,
    #[prost(uint64, tag = "2")]
    observations: u64,
}

/// A recorded decision that cannot be made again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Of another version.
    #[error("a policy named {0:?} is not known")]
    Policy(String),
    /// Of another version.
    #[error("{field} has {got} values instead of {expected}")]
    Values {
        /// Which list.
        field: &'static str,
        /// Values wanted.
        expected: usize,
        /// Values there.
        got: usize,
    },
    /// Of another version.
    #[error("{field} is {value}, which is not known")]
    Value {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u32,
    },
}

/// The inputs of a decision.
pub fn recorded(number: DecisionNumber, inputs: &Inputs) -> Decision {
    Decision {
        number: number.0,
        seed: inputs.seed,
        turn: inputs.turn,
        settings: settings(&inputs.settings),
        question: question(&inputs.question),
        candidates: inputs.candidates.iter().map(candidate).collect(),
        topology: inputs.topology.to_vec(),
    }
}

impl Decision {
    /// Number and inputs of the decision.
    pub fn read(self) -> Result<(DecisionNumber, Inputs), Unreadable> {
        let settings = read_settings(self.settings)?;
        let set = &self.question.set;
        let set = ServedSet {
            model: Digest(set.model.as_slice().into()),
            tokenizer: Digest(set.tokenizer.as_slice().into()),
            template: Digest(set.template.as_slice().into()),
        };
        let namespace: Arc<str> = self.question.namespace.as_str().into();
        let candidates =
            self.candidates.into_iter().map(|candidate| read_candidate(candidate, &set, &namespace));
        let inputs = Inputs {
            candidates: candidates.collect::<Result<_, _>>()?,
            question: Arc::new(read_question(self.question, set, namespace)?),
            topology: self.topology.into(),
            settings,
            seed: self.seed,
            turn: self.turn,
        };
        Ok((DecisionNumber(self.number), inputs))
    }
}

fn settings(settings: &Settings) -> RecordedSettings {
    RecordedSettings {
        policy: settings.policy.name().into(),
        weights: vec![
            settings.kappa,
            settings.kappa_prefill,
            settings.eta,
            settings.eviction_age,
            settings.staleness,
            settings.topology_penalty,
            settings.cold_transfer.0,
            settings.temperature.0,
        ],
        expected_output: settings.expected_output.0,
        local_prefill: settings.local_prefill,
        prefer_remote: settings.prefer_remote,
        mix_revisions: settings.mix_revisions,
    }
}

fn read_settings(settings: RecordedSettings) -> Result<Settings, Unreadable> {
    let [kappa, kappa_prefill, eta, eviction_age, staleness, topology_penalty, cold, temperature] =
        values("settings.weights", settings.weights)?;
    let policy = PolicyKind::named(&settings.policy).ok_or(Unreadable::Policy(settings.policy))?;
    Ok(Settings {
        policy,
        kappa,
        kappa_prefill,
        eta,
        eviction_age,
        staleness,
        topology_penalty,
        cold_transfer: Millis(cold),
        expected_output: Tokens(settings.expected_output),
        local_prefill: settings.local_prefill,
        prefer_remote: settings.prefer_remote,
        mix_revisions: settings.mix_revisions,
        temperature: Millis(temperature),
    })
}

fn question(question: &Question) -> RecordedQuestion {
    let constraints = &question.constraints;
    RecordedQuestion {
        namespace: question.namespace.to_string(),
        set: RecordedSet {
            model: question.set.model.0.to_vec(),
            tokenizer: question.set.tokenizer.0.to_vec(),
            template: question.set.template.0.to_vec(),
        },
        prompt: question.prompt.0,
        hash_scheme: question.hashes.as_ref().map(|(scheme, _)| scheme.to_string()),
        block_size: question.hashes.as_ref().map_or(0, |(_, size)| size.0),
        choices: question.choices,
        migrated: question.migrated,
        expected_output: question.expected_output.map(|tokens| tokens.0),
        labels: constraints.labels.clone(),
        pin_decode: constraints.pin_decode.map(rank),
        pin_prefill: constraints.pin_prefill.map(rank),
        allow: constraints.allow.iter().copied().map(rank).collect(),
        exclude: constraints.exclude.iter().copied().map(rank).collect(),
        prefill: match constraints.prefill {
            PrefillChoice::ByCost => 0,
            PrefillChoice::Remote => 1,
            PrefillChoice::Local => 2,
        },
        adapter: constraints.adapter.as_ref().map(|adapter| adapter.name().to_owned()),
        session: constraints.session.map(|session| session.0),
    }
}

/// The request's own weights are in the settings.
fn read_question(
    question: RecordedQuestion,
    set: ServedSet,
    namespace: Arc<str>,
) -> Result<Question, Unreadable> {
    let prefill = match question.prefill {
        0 => PrefillChoice::ByCost,
        1 => PrefillChoice::Remote,
        2 => PrefillChoice::Local,
        value => return Err(Unreadable::Value { field: "question.prefill", value }),
    };
    Ok(Question {
        namespace,
        set,
        prompt: Tokens(question.prompt),
        hashes: question.hash_scheme.map(|scheme| (scheme.into(), BlockSize(question.block_size))),
        choices: question.choices,
        migrated: question.migrated,
        expected_output: question.expected_output.map(Tokens),
        constraints: Constraints {
            labels: question.labels,
            pin_decode: question.pin_decode.map(read_rank),
            pin_prefill: question.pin_prefill.map(read_rank),
            allow: question.allow.into_iter().map(read_rank).collect(),
            exclude: question.exclude.into_iter().map(read_rank).collect(),
            prefill,
            adapter: question.adapter.as_deref().map(Adapter::named),
            session: question.session.map(SessionKey),
            ..Constraints::default()
        },
    })
}

fn candidate(candidate: &Candidate) -> RecordedCandidate {
    let Candidate { worker, load, matched, warm_peers } = candidate;
    let [a2, a1, a0] = worker.prior.prefill;
    let [d2, d1, d0] = worker.prior.decode;
    RecordedCandidate {
        rank: rank(worker.rank),
        status: match worker.status {
            Status::Ready => 0,
            Status::Suspect => 1,
            Status::Starting => 2,
            Status::Draining => 3,
        },
        roles: u32::from(worker.roles.aggregated)
            | u32::from(worker.roles.prefill) << 1
            | u32::from(worker.roles.decode) << 2,
        engine: worker.engine.to_string(),
        labels: (*worker.labels).clone(),
        context_length: worker.context_length.0,
        block_size: worker.block_size.0,
        kv_blocks: worker.kv_blocks.0,
        spec_hash: worker.spec_hash.to_string(),
        capabilities: worker.capabilities.iter().cloned().collect(),
        compat_key: worker.compat_key.0.to_vec(),
        hash_scheme: worker.hash_scheme.to_string(),
        limits: vec![worker.limits.max_running, worker.limits.max_waiting, worker.limits.max_batched_tokens],
        weight: worker.weight,
        prior: vec![a2, a1, a0, d2, d1, d0, worker.prior.transfer_per_token.0],
        fit_prefill: worker.fit.prefill.map(fit),
        fit_decode: worker.fit.decode.map(fit),
        matched: matched.0,
        warm_peers: warm_peers.iter().map(|peer| peer.0).collect(),
        reported: load.reported,
        age: nanos(load.age),
        requests: load.requests,
        uncomputed: load.uncomputed.0,
        pending: load.pending.0,
        active: load.active,
        roomy: load.roomy,
        victim_age: load.victim_age.map(nanos),
        waiting: load.waiting,
        unsettled: load.unsettled,
    }
}

fn read_candidate(
    it: RecordedCandidate,
    set: &ServedSet,
    namespace: &Arc<str>,
) -> Result<Candidate, Unreadable> {
    let [a2, a1, a0, d2, d1, d0, transfer] = values("candidate.prior", it.prior)?;
    let [max_running, max_waiting, max_batched_tokens] = values("candidate.limits", it.limits)?;
    let status = match it.status {
        0 => Status::Ready,
        1 => Status::Suspect,
        2 => Status::Starting,
        3 => Status::Draining,
        value => return Err(Unreadable::Value { field: "candidate.status", value }),
    };
    let worker = Worker {
        rank: read_rank(it.rank),
        // Nothing is decided by these.
        address: "".into(),
        served_name: "".into(),
        status,
        namespace: namespace.clone(),
        set: set.clone(),
        roles: Roles { aggregated: it.roles & 1 != 0, prefill: it.roles & 2 != 0, decode: it.roles & 4 != 0 },
        engine: it.engine.into(),
        labels: Arc::new(it.labels),
        context_length: Tokens(it.context_length),
        block_size: BlockSize(it.block_size),
        kv_blocks: Blocks(it.kv_blocks),
        spec_hash: it.spec_hash.into(),
        capabilities: Arc::new(it.capabilities.into_iter().collect()),
        compat_key: Digest(it.compat_key.into()),
        hash_scheme: it.hash_scheme.into(),
        limits: Limits { max_running, max_waiting, max_batched_tokens },
        weight: it.weight,
        prior: StepPrior {
            prefill: [a2, a1, a0],
            decode: [d2, d1, d0],
            transfer_per_token: Millis(transfer),
        },
        fit: StepFit {
            prefill: it.fit_prefill.map(read_fit).transpose()?,
            decode: it.fit_decode.map(read_fit).transpose()?,
        },
    };
    let load = Load {
        reported: it.reported,
        age: Duration::from_nanos(it.age),
        requests: it.requests,
        uncomputed: Tokens(it.uncomputed),
        pending: Micros(it.pending),
        active: it.active,
        roomy: it.roomy,
        victim_age: it.victim_age.map(Duration::from_nanos),
        waiting: it.waiting,
        unsettled: it.unsettled,
    };
    let warm_peers = it.warm_peers.into_iter().map(InstanceId).collect();
    Ok(Candidate { worker: Arc::new(worker), load, matched: Blocks(it.matched), warm_peers })
}

fn fit(trusted: Trusted) -> Fit {
    let model = trusted.model;
    Fit {
        values: vec![trusted.share, model.base, model.prefill_token, model.decode_row, model.position],
        observations: model.observations,
    }
}

fn read_fit(fit: Fit) -> Result<Trusted, Unreadable> {
    let [share, base, prefill_token, decode_row, position] = values("candidate.fit", fit.values)?;
    let observations = fit.observations;
    Ok(Trusted { model: StepModel { base, prefill_token, decode_row, position, observations }, share })
}

fn rank(rank: WorkerRank) -> Rank {
    Rank { instance: rank.instance.0, dp_rank: rank.dp_rank }
}

fn read_rank(rank: Rank) -> WorkerRank {
    WorkerRank { instance: InstanceId(rank.instance), dp_rank: rank.dp_rank }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn values<T, const N: usize>(field: &'static str, list: Vec<T>) -> Result<[T; N], Unreadable> {
    let got = list.len();
    list.try_into().map_err(|_| Unreadable::Values { field, expected: N, got })
}
