//! In turn, blind to load, locality and weights: the baseline that others are measured against.

use super::terms::{Term, Terms};
use super::{Policy, Task};

/// See the module.
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn score(&self, task: &Task<'_>) -> Vec<Terms> {
        let of = task.pool.len();
        (0..of).map(|position| cost(task.inputs.turn, position, of)).collect()
    }
}

/// Cost of the worker at `position` of `of` eligible ones: how far away its turn is.
fn cost(turn: u64, position: usize, of: usize) -> Terms {
    let of = of.max(1) as u64;
    let away = (position as u64 + of - turn % of) % of;
    Terms::of([(Term::Turn, away as f64)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn() {
        let first = |turn| (0..3).min_by(|a, b| cost(turn, *a, 3).sum().total_cmp(&cost(turn, *b, 3).sum()));
        assert_eq!((0..6).map(|turn| first(turn).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }
}
