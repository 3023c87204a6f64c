//! From inputs to a choice. Explanations run the same function again.

use std::cmp::Ordering;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::eligibility::{Exclusion, exclusion};
use super::terms::{Term, Terms};
use super::{Candidate, Inputs, Part, PrefillChoice, Refusal, Task};
use crate::domain::units::{Millis, Side};
use crate::domain::worker::{Status, Worker};

/// Prefill workers beside the chosen one that an answer names.
pub const PREFILL_ALTERNATES: usize = 2;
/// Shortest and longest advice when to try again, so that clients neither spin nor sleep through recovery.
pub const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

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

/// Why `candidate` may not take `side`, by what holds for every policy and by the policy's own filter.
pub fn excluded(inputs: &Inputs, side: Side, candidate: &Candidate) -> Option<Exclusion> {
    let by_policy = || inputs.settings.policy.policy().filter(&inputs.question, side, candidate);
    exclusion(&inputs.question, side, candidate).or_else(by_policy)
}

/// Decides.
pub fn evaluate(inputs: &Inputs) -> Evaluation {
    let exclusions = |side| -> Vec<_> {
        inputs.candidates.iter().map(|candidate| excluded(inputs, side, candidate)).collect()
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

/// Why two workers cannot work together on a request.
fn apart(inputs: &Inputs, leader: usize, helper: usize) -> Option<Exclusion> {
    let (leading, helping) = (&inputs.candidates[leader].worker, &inputs.candidates[helper].worker);
    if leader == helper || leading.compat_key != helping.compat_key {
        return Some(Exclusion::Incompatible);
    }
    let mixed = leading.spec_hash != helping.spec_hash;
    (mixed && !inputs.settings.mix_revisions).then_some(Exclusion::Revision)
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

    let mut remote = leaders.clone();
    remote.retain(|leader| helpers.iter().any(|helper| apart(inputs, *leader, *helper).is_none()));
    let remote = ranked(Task { inputs, part: Part::Remote, pool: &remote });
    if let Some(best) = remote.first() {
        let mut compatible = Vec::with_capacity(helpers.len());
        for helper in helpers {
            match apart(inputs, best.at, helper) {
                None => compatible.push(helper),
                why => evaluation.no_prefill[helper] = why,
            }
        }
        let part = Part::Prefill { decode: best.at };
        evaluation.prefill = ranked(Task { inputs, part, pool: &compatible });
    }

    let mut local = leaders.clone();
    local.retain(|at| inputs.settings.local_prefill || candidates[*at].worker.roles.aggregated);
    let local = ranked(Task { inputs, part: Part::Local, pool: &local });

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
            } else {
                evaluation.weighing = inputs.settings.policy.policy().weigh(inputs, (decode, prefill), local);
                evaluation.weighing.is_none_or(|weighing| weighing.remote.0 < weighing.local.0)
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

/// The workers of a pool, the one to be taken first.
fn ranked(task: Task<'_>) -> Vec<Scored> {
    let Task { inputs, pool, .. } = task;
    let policy = inputs.settings.policy.policy();
    let terms = policy.score(&task);
    let mut scored: Vec<_> = pool.iter().zip(terms).map(|(at, terms)| scored(inputs, *at, terms)).collect();
    scored.sort_unstable_by(|a, b| order(inputs, a, b));
    let best = scored.first().map(|best| class(&inputs.candidates[best.at]));
    let others = scored.iter().position(|other| Some(class(&inputs.candidates[other.at])) != best);
    let others = others.unwrap_or(scored.len());
    policy.pick(&task, &mut scored[..others]);
    scored
}

fn scored(inputs: &Inputs, at: usize, mut terms: Terms) -> Scored {
    let temperature = inputs.settings.temperature.0;
    if temperature > 0.0 {
        // Costs plus these: the least is drawn in proportion to exp(-cost / temperature), the second likewise of the rest.
        let drawn = draw(inputs.seed, &inputs.candidates[at].worker);
        terms.add(Term::Chance, temperature * drawn.max(f64::MIN_POSITIVE).ln());
    }
    Scored { at, cost: terms.sum(), terms }
}

fn order(inputs: &Inputs, a: &Scored, b: &Scored) -> Ordering {
    let (one, other) = (&inputs.candidates[a.at], &inputs.candidates[b.at]);
    class(one)
        .cmp(&class(other))
        .then(a.cost.total_cmp(&b.cost))
        .then_with(|| draw(inputs.seed, &one.worker).total_cmp(&draw(inputs.seed, &other.worker)))
        .then(a.at.cmp(&b.at))
}

/// Workers in doubt come last, those without a report after those with one.
fn class(candidate: &Candidate) -> (bool, bool) {
    (candidate.worker.status == Status::Suspect, !candidate.load.reported)
}

/// A number for a worker: of several each has the least with a probability in proportion to its weight.
pub fn draw(seed: u64, worker: &Worker) -> f64 {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&worker.rank.instance.0.to_le_bytes());
    bytes[8..].copy_from_slice(&worker.rank.dp_rank.to_le_bytes());
    let share = ((xxh3_64_with_seed(&bytes, seed) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -share.ln() / worker.weight
}

fn refusal(inputs: &Inputs, side: Side, why: &[Option<Exclusion>]) -> Refusal {
    let has = |wanted| why.contains(&Some(wanted));
    let candidates = || inputs.candidates.iter().zip(why).filter(|(_, why)| **why != Some(Exclusion::Role));
    let prompt = inputs.question.prompt.0;
    if has(Exclusion::NoPin) {
        return Refusal::PinMissing;
    }
    if has(Exclusion::Full) {
        let full = candidates().filter(|(_, why)| **why == Some(Exclusion::Full));
        let room = |candidate: &Candidate| candidate.load.queue(&candidate.worker.step_cost()).duration();
        let soonest = full.map(|(candidate, _)| room(candidate)).min().unwrap_or_default();
        return Refusal::Busy { retry_after: soonest.clamp(RETRY_AFTER.0, RETRY_AFTER.1) };
    }
    let constraints = &inputs.question.constraints;
    if let Some(rank) = constraints.pin(side) {
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
