//! How far two workers are from each other, by labels such as zone and host.

use super::{Candidate, Inputs};
use crate::domain::units::Millis;

/// Steps between two workers: with the keys from coarse to fine, those from the first on in which they differ. Where both have no label they do not
/// differ.
fn steps(keys: &[String], one: &Candidate, other: &Candidate) -> usize {
    let differs = |key: &String| one.worker.labels.get(key) != other.worker.labels.get(key);
    keys.iter().position(differs).map_or(0, |first| keys.len() - first)
}

/// Whether a connection between two workers would have to be opened; false where neither says which it has.
fn cold(one: &Candidate, other: &Candidate) -> bool {
    let warm = |one: &Candidate, other: &Candidate| one.warm_peers.contains(&other.worker.rank.instance);
    let said = !one.warm_peers.is_empty() || !other.warm_peers.is_empty();
    said && !warm(one, other) && !warm(other, one)
}

/// What moving the prompt's KV from `prefill` to `decode` costs beyond the transfer itself.
pub(super) fn distance(inputs: &Inputs, decode: &Candidate, prefill: &Candidate) -> Millis {
    let moved = decode.worker.step_cost().transfer(decode.uncached(inputs.question.prompt)).0;
    let steps = steps(&inputs.topology, decode, prefill) as f64;
    let opening = if cold(decode, prefill) { inputs.settings.cold_transfer.0 } else { 0.0 };
    Millis(moved * inputs.settings.topology_penalty * steps + opening)
}
