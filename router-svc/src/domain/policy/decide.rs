//! From inputs to a choice. Explanations run the same function again.

use std::cmp::Ordering;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::eligibility::{Exclusion, exclusion};
use super::kv::{self, PromptBy};
use super::terms::Terms;
use super::{Candidate, Inputs, PolicyKind, PrefillChoice, Refusal, least_loaded, round_robin};
use crate::domain::units::{Millis, Side};
use crate::domain::worker::Status;

/// Prefill workers beside the chosen one that an answer names.
pub const PREFILL_ALTERNATES: usize = 2;
/// Shortest and longest advice when to try again, so that clients neither spin nor sleep through recovery.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// A candidate's place, by index into the inputs.
#[derive(Debug, Clone, Copy)]
pub struct Scored {
    /// Which candidate.
    pub at: usize,
    /// Its cost in parts.
    pub terms: Terms,
    /// Their sum.
    pub cost: f64,
}

/// What was chosen, by index into the inputs' candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Leads the request.
    pub decode: usize,
    /// Computes the prompt: the chosen one, then alternates. Empty: the decode worker does.
    pub prefill: Vec<usize>,
}

/// Time to the first token both ways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighing {
    /// With the best prefill worker.
    pub remote: Millis,
    /// Without.
    pub local: Millis,
}

/// A decision and all that led to it.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// Eligible decode workers as they were scored for the way chosen, best first.
    pub decode: Vec<Scored>,
    /// Eligible prefill workers, best first.
    pub prefill: Vec<Scored>,
    /// Per candidate, why not for decode.
    pub no_decode: Vec<Option<Exclusion>>,
    /// Per candidate, why not for prefill.
    pub no_prefill: Vec<Option<Exclusion>>,
    /// The comparison, if cost decided where the prompt is computed.
    pub weighing: Option<Weighing>,
    /// The outcome.
    pub choice: Result<Choice, Refusal>,
}

/// Decides.
pub fn evaluate(inputs: &Inputs) -> Evaluation {
    let exclusions = |side| -> Vec<_> {
        inputs.candidates.iter().map(|candidate| exclusion(&inputs.question, side, candidate)).collect()
    };
    let no_decode = exclusions(Side::Decode);
    let wanted = &inputs.question.constraints;
    let local_wanted = wanted.prefill == PrefillChoice::Local && wanted.pin_prefill.is_none();
    let mut no_prefill = exclusions(Side::Prefill);
    if local_wanted {
        no_prefill.iter_mut().for_each(|why| _ = why.get_or_insert(Exclusion::LocalWanted));
    }
    let mut evaluation = Evaluation {
        decode: Vec::new(),
        prefill: Vec::new(),
        no_decode,
        no_prefill,
        weighing: None,
        choice: Err(Refusal::NoWorkers(String::new())),
    };
    evaluation.choice = choose(inputs, &mut evaluation);
    evaluation
}

fn choose(inputs: &Inputs, evaluation: &mut Evaluation) -> Result<Choice, Refusal> {
    let eligible = |why: &[Option<Exclusion>]| -> Vec<usize> {
        why.iter().enumerate().filter_map(|(at, why)| why.is_none().then_some(at)).collect()
    };
    let candidates = &inputs.candidates;
    let leaders = eligible(&evaluation.no_decode);
    let helpers = eligible(&evaluation.no_prefill);
    if leaders.is_empty() {
        return Err(refusal(inputs, Side::Decode, &evaluation.no_decode));
    }
    let pinned_prefill = inputs.question.constraints.pin_prefill.is_some();
    if pinned_prefill && helpers.is_empty() {
        return Err(refusal(inputs, Side::Prefill, &evaluation.no_prefill));
    }

    let helps = |leader: usize, helper: usize| {
        leader != helper && candidates[leader].worker.compat_key == candidates[helper].worker.compat_key
    };
    let mut remote = leaders.clone();
    remote.retain(|leader| helpers.iter().any(|helper| helps(*leader, *helper)));
    let remote = ranked(inputs, &remote, |candidate, position, of| {
        decode_terms(inputs, candidate, PromptBy::Remote, position, of)
    });
    if let Some(best) = remote.first() {
        let compatible: Vec<_> = helpers.iter().copied().filter(|helper| helps(best.at, *helper)).collect();
        let mean_age = kv::mean_victim_age(compatible.iter().map(|at| &candidates[*at]));
        for helper in helpers.iter().filter(|helper| !compatible.contains(helper)) {
            evaluation.no_prefill[*helper] = Some(Exclusion::Incompatible);
        }
        evaluation.prefill =
            ranked(inputs, &compatible, |candidate, position, of| match inputs.settings.policy {
                PolicyKind::Kv => kv::prefill_cost(inputs, candidate, mean_age),
                PolicyKind::RoundRobin => round_robin::cost(inputs.turn, position, of),
                PolicyKind::LeastLoaded => least_loaded::cost(candidate),
            });
    }

    let mut local = leaders.clone();
    local.retain(|at| inputs.settings.local_prefill || candidates[*at].worker.roles.aggregated);
    let local = ranked(inputs, &local, |candidate, position, of| {
        decode_terms(inputs, candidate, PromptBy::Local, position, of)
    });

    let remotely = match (remote.first(), evaluation.prefill.first(), local.first()) {
        (Some(_), Some(_), None) => true,
        (Some(decode), Some(prefill), Some(local)) => {
            let (decode, prefill) = (&candidates[decode.at], &candidates[prefill.at]);
            let local = &candidates[local.at];
            let (remote_class, local_class) = (class(decode).max(class(prefill)), class(local));
            let ready = prefill.worker.status == Status::Ready;
            let wanted = match inputs.question.constraints.prefill {
                PrefillChoice::Remote => true,
                PrefillChoice::ByCost => inputs.settings.prefer_remote,
                PrefillChoice::Local => false,
            };
            if pinned_prefill || (wanted && ready) {
                true
            } else if remote_class != local_class {
                remote_class < local_class
            } else if inputs.settings.policy == PolicyKind::Kv {
                let weighing = Weighing {
                    remote: kv::remote_time(inputs, decode, prefill),
                    local: kv::local_time(inputs, local),
                };
                evaluation.weighing = Some(weighing);
                weighing.remote.0 < weighing.local.0
            } else {
                true
            }
        }
        _ => false,
    };
    if pinned_prefill && !remotely {
        return Err(refusal(inputs, Side::Prefill, &evaluation.no_prefill));
    }
    evaluation.decode = if remotely { remote } else { local };
    for at in leaders {
        if !evaluation.decode.iter().any(|scored| scored.at == at) {
            evaluation.no_decode[at] =
                Some(if remotely { Exclusion::Incompatible } else { Exclusion::NoPrefill });
        }
    }
    let Some(decode) = evaluation.decode.first().map(|best| best.at) else {
        return Err(refusal(inputs, Side::Decode, &evaluation.no_decode));
    };
    let prefill = evaluation.prefill.iter().map(|scored| scored.at);
    let prefill = if remotely { prefill.take(1 + PREFILL_ALTERNATES).collect() } else { Vec::new() };
    Ok(Choice { decode, prefill })
}

fn decode_terms(
    inputs: &Inputs,
    candidate: &Candidate,
    prompt: PromptBy,
    position: usize,
    of: usize,
) -> Terms {
    match inputs.settings.policy {
        PolicyKind::Kv => kv::decode_cost(inputs, candidate, prompt),
        PolicyKind::RoundRobin => round_robin::cost(inputs.turn, position, of),
        PolicyKind::LeastLoaded => least_loaded::cost(candidate),
    }
}

fn ranked(inputs: &Inputs, pool: &[usize], terms: impl Fn(&Candidate, usize, usize) -> Terms) -> Vec<Scored> {
    let score = |(position, at): (usize, &usize)| {
        let terms = terms(&inputs.candidates[*at], position, pool.len());
        Scored { at: *at, cost: terms.sum(), terms }
    };
    let mut scored: Vec<_> = pool.iter().enumerate().map(score).collect();
    scored.sort_unstable_by(|a, b| order(inputs, a, b));
    scored
}

fn order(inputs: &Inputs, a: &Scored, b: &Scored) -> Ordering {
    let (one, other) = (&inputs.candidates[a.at], &inputs.candidates[b.at]);
    class(one)
        .cmp(&class(other))
        .then(a.cost.total_cmp(&b.cost))
        .then_with(|| tie(inputs.seed, one.worker.rank).cmp(&tie(inputs.seed, other.worker.rank)))
        .then(a.at.cmp(&b.at))
}

/// Workers in doubt come last, those without a report after those with one.
fn class(candidate: &Candidate) -> (bool, bool) {
    (candidate.worker.status == Status::Suspect, !candidate.load.reported)
}

fn tie(seed: u64, rank: WorkerRank) -> u64 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&rank.instance.0.to_le_bytes());
    bytes[8..].copy_from_slice(&rank.dp_rank.to_le_bytes());
    xxh3_64_with_seed(&bytes, seed)
}

fn refusal(inputs: &Inputs, side: Side, why: &[Option<Exclusion>]) -> Refusal {
    let has = |wanted| why.contains(&Some(wanted));
    let candidates = || inputs.candidates.iter().zip(why).filter(|(_, why)| **why != Some(Exclusion::Role));
    let prompt = inputs.question.prompt.0;
    if has(Exclusion::Full) {
        let full = candidates().filter(|(_, why)| **why == Some(Exclusion::Full));
        let room = |candidate: &Candidate| candidate.load.queue(&candidate.worker.step_cost()).duration();
        let soonest = full.map(|(candidate, _)| room(candidate)).min().unwrap_or_default();
        return Refusal::Busy { retry_after: soonest.clamp(RETRY_AFTER.0, RETRY_AFTER.1) };
    }
    let constraints = &inputs.question.constraints;
    let pin = match side {
        Side::Decode => constraints.pin_decode,
        Side::Prefill => constraints.pin_prefill,
    };
    if let Some(rank) = pin {
        let at = inputs.candidates.iter().position(|candidate| candidate.worker.rank == rank);
        let why = at
            .map_or("not a worker of this model", |at| why[at].map_or("without a partner", Exclusion::text));
        return Refusal::NotEligible { rank, why };
    }
    let limits = |wanted, limit: fn(&Candidate) -> u64| {
        candidates().filter(|(_, why)| **why == Some(wanted)).map(|(candidate, _)| limit(candidate)).max()
    };
    if let Some(limit) = limits(Exclusion::Context, |candidate| candidate.worker.context_length.0) {
        return Refusal::ContextLength { prompt, limit };
    }
    if let Some(limit) = limits(Exclusion::Pool, |candidate| candidate.worker.capacity().0) {
        return Refusal::Pool { prompt, limit };
    }
    if let Some((scheme, size)) = &inputs.question.hashes {
        let first =
            |wanted| candidates().find(|(_, why)| **why == Some(wanted)).map(|(candidate, _)| candidate);
        if let Some(candidate) = first(Exclusion::HashScheme) {
            return Refusal::HashScheme {
                expected: candidate.worker.hash_scheme.clone(),
                got: scheme.clone(),
            };
        }
        if let Some(candidate) = first(Exclusion::BlockSize) {
            return Refusal::BlockSize { expected: candidate.worker.block_size.0, got: size.0 };
        }
    }
    let first = candidates().find_map(|(_, why)| *why);
    Refusal::NoWorkers(match first {
        Some(why) => format!("the first of {} is {}", candidates().count(), why.text()),
        None => "nobody serves this model".into(),
    })
}
