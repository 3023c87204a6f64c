//! The less loaded of two drawn workers, in proportion to their weights: nearly as even as the least loaded of all, and without every router
//! running to the same one.

use super::decide::{Scored, draw};
use super::terms::Terms;
use super::{Policy, Task, least_loaded};

/// Another draw than the one that breaks ties.
const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

/// See the module.
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power-of-two"
    }

    fn score(&self, task: &Task<'_>) -> Vec<Terms> {
        task.candidates().map(least_loaded::cost).collect()
    }

    fn pick(&self, task: &Task<'_>, best: &mut [Scored]) {
        let drawn = |at: &usize| draw(task.inputs.seed ^ SALT, &task.inputs.candidates[best[*at].at].worker);
        let mut places: Vec<usize> = (0..best.len()).collect();
        if places.len() > 2 {
            places.select_nth_unstable_by(1, |a, b| drawn(a).total_cmp(&drawn(b)));
        }
        // They stand by cost: of two the one further ahead is the less loaded.
        if let Some(place) = places.iter().take(2).min() {
            best[..=*place].rotate_right(1);
        }
    }
}
