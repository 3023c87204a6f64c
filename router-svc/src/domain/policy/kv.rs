//! By KV locality and load, in milliseconds. With u the worker's uncached prompt tokens, S and D its step times ([`crate::domain::step_cost`]), Q
//! its queue, l its fill, n its requests, E_o the expected output, isl the prompt and cap the capacity in tokens:
//!
//! ```text
//! local prefill:  Q + (1 + kappa) S(u) + eta [ E_o D(l') + 1/2 n E_o (D(l') - D(l)) ],     l' = l + isl / cap
//! remote prefill: Q + (1 + kappa) T(u) + eta [ the same ],                                 T = transfer time
//! prefill pool:   Q + (1 + kappa_p) S(u) + w exp(-A / mean A) p u
//! ```
//!
//! A is the age of the block that the worker would evict next (0 cost with more than 2 % free), p its price of a prefilled token, w = 2. That
//! puts cold prompts on the coldest cache. A worker's weight divides its queue.
//!
//! Remote prefill is taken when it pays: `Q_P + S_P(u_P) + T(u_D) < Q_D + S_D(u_D) + eta n_D S_D(u_D)`. The last term is what the running
//! requests of the decode worker wait while it computes the prompt.

use super::terms::{Term, Terms};
use super::{Candidate, Inputs};
use crate::domain::step_cost::StepCost;
use crate::domain::units::Millis;

/// How the prompt comes to the decode worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptBy {
    /// Computed there.
    Local,
    /// Moved there.
    Remote,
}

/// Cost of leading the request.
pub fn decode_cost(inputs: &Inputs, candidate: &Candidate, prompt: PromptBy) -> Terms {
    let cost = candidate.worker.step_cost();
    let (term, getting) = match prompt {
        PromptBy::Local => (Term::Prefill, cost.service(candidate.uncached(inputs.question.prompt)).0),
        PromptBy::Remote => (Term::Transfer, cost.transfer(candidate.uncached(inputs.question.prompt)).0),
    };
    let (own, others) = decoding(inputs, candidate, &cost);
    Terms::of([
        (Term::Queue, queue(candidate, &cost)),
        (term, getting),
        (Term::Duplication, inputs.settings.kappa * getting),
        (Term::Decode, inputs.settings.eta * own),
        (Term::Interference, inputs.settings.eta * others),
    ])
}

/// Cost of prefilling for a decode worker; `mean_age` is the mean age in seconds of the next victims of the pool.
pub fn prefill_cost(inputs: &Inputs, candidate: &Candidate, mean_age: f64) -> Terms {
    let cost = candidate.worker.step_cost();
    let uncached = candidate.uncached(inputs.question.prompt);
    let service = cost.service(uncached).0;
    let eviction = match candidate.load.victim_age {
        Some(age) if !candidate.load.roomy && mean_age > 0.0 => {
            let coldness = (-age.as_secs_f64() / mean_age).exp();
            inputs.settings.eviction_age * coldness * cost.per_token().0 * uncached.0 as f64
        }
        _ => 0.0,
    };
    Terms::of([
        (Term::Queue, queue(candidate, &cost)),
        (Term::Prefill, service),
        (Term::Duplication, inputs.settings.kappa_prefill * service),
        (Term::Eviction, eviction),
    ])
}

/// Mean age in seconds of the next victims of a pool; 0 when nobody has one.
pub fn mean_victim_age<'a>(pool: impl Iterator<Item = &'a Candidate>) -> f64 {
    let ages = pool.filter_map(|candidate| candidate.load.victim_age);
    let (sum, n) = ages.fold((0.0, 0u32), |(sum, n), age| (sum + age.as_secs_f64(), n + 1));
    if n == 0 { 0.0 } else { sum / f64::from(n) }
}

/// Time to the first token with the prompt computed by `prefill` and moved to `decode`.
pub fn remote_time(inputs: &Inputs, decode: &Candidate, prefill: &Candidate) -> Millis {
    let prompt = inputs.question.prompt;
    let theirs = prefill.worker.step_cost();
    let ours = decode.worker.step_cost();
    Millis(
        prefill.load.queue(&theirs).0
            + theirs.service(prefill.uncached(prompt)).0
            + ours.transfer(decode.uncached(prompt)).0,
    )
}

/// Time to the first token with the prompt computed by `decode`, and what it costs the requests that run there.
pub fn local_time(inputs: &Inputs, decode: &Candidate) -> Millis {
    let cost = decode.worker.step_cost();
    let service = cost.service(decode.uncached(inputs.question.prompt)).0;
    let stalled = inputs.settings.eta * f64::from(decode.load.requests) * service;
    Millis(decode.load.queue(&cost).0 + service + stalled)
}

fn queue(candidate: &Candidate, cost: &StepCost) -> f64 {
    candidate.load.queue(cost).0 / candidate.worker.weight
}

/// Decode time of the request itself, and what it adds to that of others.
fn decoding(inputs: &Inputs, candidate: &Candidate, cost: &StepCost) -> (f64, f64) {
    let question = &inputs.question;
    let output = question.expected_output.unwrap_or(inputs.settings.expected_output).0 as f64;
    let fill = candidate.load.fill(&candidate.worker);
    let more = question.prompt.0 as f64 / candidate.worker.capacity().0.max(1) as f64;
    let requests = candidate.load.requests;
    let before = cost.decode(fill).0;
    let after = cost.decode(fill + more).0;
    // The parabola of a prior may fall at high load: nobody gets faster by company.
    let slower = (after - before).max(0.0);
    (output * after, 0.5 * f64::from(requests) * output * slower)
}
