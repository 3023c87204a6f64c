//! By KV locality and load, in milliseconds. With u the worker's uncached prompt tokens, S and D its step times ([`crate::domain::step_cost`]), Q
//! its queue, l its fill, n its requests, E_o the expected output, isl the prompt and cap the capacity in tokens:
//!
//! ```text
//! local prefill:  Q + s + (1 + kappa) S(u) + eta [ E_o D(l') + 1/2 n E_o (D(l') - D(l)) ],     l' = l + isl / cap
//! remote prefill: Q + s + (1 + kappa) T(u) + eta [ the same ],                                 T = transfer time
//! prefill pool:   Q + s + (1 + kappa_p) S(u) + w exp(-A / mean A) p u + x
//! ```
//!
//! A is the age of the block that the worker would evict next (0 cost with more than 2 % free), p its price of a prefilled token, w = 2. That
//! puts cold prompts on the coldest cache. s is the time for which the worker's report is overdue, x what the way to the decode worker costs beyond
//! the transfer: half of it per step of the topology, and 2 ms for opening a connection. A worker's weight divides its queue.
//!
//! Remote prefill is taken when it pays: `Q_P + S_P(u_P) + T(u_D) < Q_D + S_D(u_D) + eta n_D S_D(u_D)`. The last term is what the running
//! requests of the decode worker wait while it computes the prompt.

use super::decide::Weighing;
use super::terms::{Term, Terms};
use super::topology::distance;
use super::{Candidate, Inputs, Part, Policy, Task};
use crate::domain::step_cost::StepCost;
use crate::domain::units::Millis;

/// See the module.
pub struct Kv;

impl Policy for Kv {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn score(&self, task: &Task<'_>) -> Vec<Terms> {
        let inputs = task.inputs;
        let candidates = task.candidates();
        match task.part {
            Part::Prefill { decode } => {
                let mean_age = mean_victim_age(task.candidates());
                let decode = &inputs.candidates[decode];
                candidates.map(|candidate| prefill_cost(inputs, decode, candidate, mean_age)).collect()
            }
            part => candidates.map(|candidate| decode_cost(inputs, candidate, part)).collect(),
        }
    }

    fn weigh(
        &self,
        inputs: &Inputs,
        (decode, prefill): (&Candidate, &Candidate),
        local: &Candidate,
    ) -> Option<Weighing> {
        Some(Weighing { remote: remote_time(inputs, decode, prefill), local: local_time(inputs, local) })
    }
}

/// Cost of leading the request.
fn decode_cost(inputs: &Inputs, candidate: &Candidate, part: Part) -> Terms {
    let cost = candidate.worker.step_cost();
    let uncached = candidate.uncached(inputs.question.prompt);
    let (term, getting) = match part {
        Part::Remote => (Term::Transfer, cost.transfer(uncached).0),
        _ => (Term::Prefill, cost.service(uncached).0),
    };
    let (own, others) = decoding(inputs, candidate, &cost);
    Terms::of([
        (Term::Queue, queue(candidate, &cost)),
        (Term::Staleness, staleness(inputs, candidate)),
        (term, getting),
        (Term::Duplication, inputs.settings.kappa * getting),
        (Term::Decode, inputs.settings.eta * own),
        (Term::Interference, inputs.settings.eta * others),
    ])
}

/// Cost of prefilling for `decode`; `mean_age` is the mean age in seconds of the next victims of the pool.
fn prefill_cost(inputs: &Inputs, decode: &Candidate, candidate: &Candidate, mean_age: f64) -> Terms {
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
        (Term::Staleness, staleness(inputs, candidate)),
        (Term::Prefill, service),
        (Term::Duplication, inputs.settings.kappa_prefill * service),
        (Term::Eviction, eviction),
        (Term::Distance, distance(inputs, decode, candidate).0),
    ])
}

/// Mean age in seconds of the next victims of a pool; 0 when nobody has one.
fn mean_victim_age<'a>(pool: impl Iterator<Item = &'a Candidate>) -> f64 {
    let ages = pool.filter_map(|candidate| candidate.load.victim_age);
    let (sum, n) = ages.fold((0.0, 0u32), |(sum, n), age| (sum + age.as_secs_f64(), n + 1));
    if n == 0 { 0.0 } else { sum / f64::from(n) }
}

/// Time to the first token with the prompt computed by `prefill` and moved to `decode`.
fn remote_time(inputs: &Inputs, decode: &Candidate, prefill: &Candidate) -> Millis {
    let prompt = inputs.question.prompt;
    let theirs = prefill.worker.step_cost();
    let ours = decode.worker.step_cost();
    Millis(
        prefill.load.queue(&theirs).0
            + theirs.service(prefill.uncached(prompt)).0
            + ours.transfer(decode.uncached(prompt)).0
            + distance(inputs, decode, prefill).0,
    )
}

/// Time to the first token with the prompt computed by `decode`, and what it costs the requests that run there.
fn local_time(inputs: &Inputs, decode: &Candidate) -> Millis {
    let cost = decode.worker.step_cost();
    let service = cost.service(decode.uncached(inputs.question.prompt)).0;
    let stalled = inputs.settings.eta * f64::from(decode.load.requests) * service;
    Millis(decode.load.queue(&cost).0 + service + stalled)
}

fn staleness(inputs: &Inputs, candidate: &Candidate) -> f64 {
    inputs.settings.staleness * candidate.load.overdue().0
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
    let before = cost.decode(fill, requests).0;
    let after = cost.decode(fill + more, requests.saturating_add(question.choices)).0;
    // The parabola of a prior may fall at high load: nobody gets faster by company.
    let slower = (after - before).max(0.0);
    (output * after, 0.5 * f64::from(requests) * output * slower)
}
