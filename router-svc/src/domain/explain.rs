//! Why a decision was as it was: its inputs are kept, bounded in bytes, and the decision is made again from them.

use std::collections::VecDeque;
use std::time::Duration;

use armature_contracts::ids::WorkerRank;

use super::policy::decide::{Evaluation, Scored, evaluate};
use super::policy::eligibility::Exclusion;
use super::policy::terms::Terms;
use super::policy::{Inputs, Overrides, PolicyKind};
use super::units::{Blocks, Time, Tokens};

/// Number of a decision of this router, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DecisionNumber(pub u64);

/// The inputs of the latest decisions.
#[derive(Debug)]
pub struct KeptDecisions {
    /// By number.
    kept: VecDeque<Kept>,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    number: DecisionNumber,
    made: Time,
    inputs: Inputs,
    bytes: usize,
}

/// A worker in an explanation.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateScore {
    /// Which.
    pub worker: WorkerRank,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Why it was not eligible.
    pub excluded: Option<Exclusion>,
    /// Prompt blocks it was believed to have.
    pub matched: Blocks,
    /// Age of its report at the decision; none without one.
    pub report_age: Option<Duration>,
    /// Its cost in parts; none when it was not eligible.
    pub terms: Terms,
    /// Their sum.
    pub cost: f64,
}

/// Who is chosen; nobody where the request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Leads.
    pub decode: Option<WorkerRank>,
    /// Prefills, alternates included.
    pub prefill: Vec<WorkerRank>,
}

impl Outcome {
    /// Of these inputs.
    pub fn of(inputs: &Inputs) -> Self {
        let rank = |at: &usize| inputs.candidates[*at].worker.rank;
        evaluate(inputs).choice.map_or_else(
            |_| Self::default(),
            |choice| Self {
                decode: Some(rank(&choice.decode)),
                prefill: choice.prefill.iter().map(rank).collect(),
            },
        )
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.decode {
            None => f.write_str("refused")?,
            Some(decode) => write!(f, "{decode}")?,
        }
        self.prefill.iter().try_for_each(|prefill| write!(f, " {prefill}"))
    }
}

/// A decision explained.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// How workers were scored.
    pub policy: PolicyKind,
    /// Since the decision.
    pub age: Duration,
    /// Workers that could lead, best first, then those not eligible.
    pub decode: Vec<CandidateScore>,
    /// Workers that could prefill, likewise.
    pub prefill: Vec<CandidateScore>,
    /// Sentences, most important first.
    pub reasons: Vec<String>,
    /// Of the request.
    pub prompt: Tokens,
    /// Who would have been chosen with other weights; none when nobody asked.
    pub otherwise: Option<Outcome>,
}

impl KeptDecisions {
    /// None yet, at most `max_bytes` of them.
    pub fn new(max_bytes: usize) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Keeps the inputs of a decision, whose number is higher than all before; the oldest make room.
    pub fn keep(&mut self, number: DecisionNumber, inputs: Inputs, now: Time) {
        let bytes = inputs.bytes();
        self.bytes += bytes;
        self.kept.push_back(Kept { number, made: now, inputs, bytes });
        while self.bytes > self.max_bytes {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }

    /// Explains a decision, and who would have been chosen with these weights; none when it is not kept.
    pub fn explain(
        &self,
        number: DecisionNumber,
        otherwise: Option<Overrides>,
        now: Time,
    ) -> Option<Explanation> {
        let at = self.kept.binary_search_by_key(&number, |kept| kept.number).ok()?;
        let kept = &self.kept[at];
        let mut explanation = explain(&kept.inputs, now.since(kept.made));
        explanation.otherwise = otherwise.map(|weights| {
            let settings = kept.inputs.settings.with(weights);
            Outcome::of(&Inputs { settings, ..kept.inputs.clone() })
        });
        Some(explanation)
    }

    /// The inputs of a decision; none when they are not kept.
    pub fn inputs(&self, number: DecisionNumber) -> Option<&Inputs> {
        let at = self.kept.binary_search_by_key(&number, |kept| kept.number).ok()?;
        Some(&self.kept[at].inputs)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Makes the decision again and says why.
pub fn explain(inputs: &Inputs, age: Duration) -> Explanation {
    let evaluation = evaluate(inputs);
    let (decode, prefill) = match &evaluation.choice {
        Ok(choice) => (Some(choice.decode), choice.prefill.first().copied()),
        Err(_) => (None, None),
    };
    Explanation {
        policy: inputs.settings.policy,
        age,
        decode: scores(inputs, &evaluation.decode, &evaluation.no_decode, decode),
        prefill: scores(inputs, &evaluation.prefill, &evaluation.no_prefill, prefill),
        reasons: reasons(inputs, &evaluation),
        prompt: inputs.question.prompt,
        otherwise: None,
    }
}

fn scores(
    inputs: &Inputs,
    scored: &[Scored],
    excluded: &[Option<Exclusion>],
    chosen: Option<usize>,
) -> Vec<CandidateScore> {
    let score = |at: usize, excluded, terms: Terms, cost| CandidateScore {
        worker: inputs.candidates[at].worker.rank,
        chosen: chosen == Some(at),
        excluded,
        matched: inputs.candidates[at].matched,
        report_age: Some(inputs.candidates[at].load).filter(|load| load.reported).map(|load| load.age),
        terms,
        cost,
    };
    let out = excluded.iter().enumerate().filter(|(_, why)| why.is_some_and(|why| why != Exclusion::Role));
    scored
        .iter()
        .map(|scored| score(scored.at, None, scored.terms, scored.cost))
        .chain(out.map(|(at, why)| score(at, *why, Terms::default(), 0.0)))
        .collect()
}

fn reasons(inputs: &Inputs, evaluation: &Evaluation) -> Vec<String> {
    let choice = match &evaluation.choice {
        Ok(choice) => choice,
        Err(refusal) => return vec![refusal.to_string()],
    };
    let mut reasons = vec![comparison(inputs, "leads", &evaluation.decode)];
    let leader = &inputs.candidates[choice.decode];
    let covered = leader.worker.block_size.full(inputs.question.prompt);
    reasons.push(format!("{} has {} of {} prompt blocks", leader.worker.rank, leader.matched.0, covered.0));
    if choice.prefill.is_empty() {
        reasons.push("the prompt is computed by the decode worker".into());
    } else {
        reasons.push(comparison(inputs, "prefills", &evaluation.prefill));
    }
    if let Some(weighing) = evaluation.weighing {
        reasons.push(format!(
            "first token expected after {:.2} ms with remote prefill, {:.2} ms without",
            weighing.remote.0, weighing.local.0
        ));
    }
    let out = evaluation.no_decode.iter().flatten().filter(|why| **why != Exclusion::Role).count();
    if out > 0 {
        reasons.push(format!("{out} of {} workers were not eligible to lead", inputs.candidates.len()));
    }
    reasons
}

fn comparison(inputs: &Inputs, does: &str, scored: &[Scored]) -> String {
    let name = |scored: &Scored| inputs.candidates[scored.at].worker.rank;
    match scored {
        [] => format!("nobody {does}"),
        [only] => format!("{} {does}: the only eligible worker", name(only)),
        [best, next, ..] => {
            format!(
                "{} {does} at a cost of {:.3}; next is {} at {:.3}",
                name(best),
                best.cost,
                name(next),
                next.cost
            )
        }
    }
}
