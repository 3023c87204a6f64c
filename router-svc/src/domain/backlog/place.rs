//! In which order the requests of one tenant leave the backlog.
//!
//! ```text
//! place = (epoch - class, deadline in steps of 100 ms, uncached tokens, number of its arrival),     epoch = floor(arrival / aging)
//! ```
//!
//! The smallest place goes first: a class is worth one aging time of waiting. So whoever came later than `(MAX_CLASS - class + 1) * aging`
//! after a request cannot go before it, whatever its class, deadline and prompt: nobody starves.

use std::time::Duration;

use crate::domain::units::{Time, Tokens};

/// Highest class that a priority is worth; more is no more.
pub const MAX_CLASS: i32 = 8;
/// Lowest one.
pub const MIN_CLASS: i32 = -8;
/// Deadlines are no finer: between requests that must begin at about the same time the shorter one goes first.
const DEADLINE_STEP: Duration = Duration::from_millis(100);

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    late: i64,
    deadline: u64,
    uncached: Tokens,
    number: u64,
}

impl Place {
    /// Of the `number`-th request, which came at `now`, may wait until `until` and has so many tokens to compute at best.
    pub fn new(
        priority: i32,
        until: Time,
        uncached: Tokens,
        now: Time,
        aging: Duration,
        number: u64,
    ) -> Self {
        let epoch = i64::try_from(steps(now, aging)).unwrap_or(i64::MAX);
        let class = i64::from(priority.clamp(MIN_CLASS, MAX_CLASS));
        Self { late: epoch.saturating_sub(class), deadline: steps(until, DEADLINE_STEP), uncached, number }
    }
}

fn steps(time: Time, step: Duration) -> u64 {
    let steps = time.0.as_nanos() / step.as_nanos().max(1);
    u64::try_from(steps).unwrap_or(u64::MAX)
}

/// Whoever comes so long after a request of this priority cannot go before it.
pub fn overtaken_for(priority: i32, aging: Duration) -> Duration {
    let classes = MAX_CLASS - priority.clamp(MIN_CLASS, MAX_CLASS) + 1;
    aging * u32::try_from(classes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGING: Duration = Duration::from_secs(5);

    fn at(millis: u64) -> Time {
        Time(Duration::from_millis(millis))
    }

    fn place(priority: i32, until: u64, uncached: u64, now: u64, number: u64) -> Place {
        Place::new(priority, at(until), Tokens(uncached), at(now), AGING, number)
    }

    #[test]
    fn class_then_deadline_then_work_then_arrival() {
        let first = place(1, 9_000, 900, 1_000, 3);
        let urgent = place(0, 5_000, 900, 1_000, 2);
        let short = place(0, 9_000, 10, 1_000, 1);
        let long = place(0, 9_050, 900, 1_000, 0);
        let later = place(0, 9_050, 900, 1_000, 4);
        let mut places = [later, long, short, urgent, first];
        places.sort_unstable();
        assert_eq!(places, [first, urgent, short, long, later]);
    }

    proptest! {
        #[test]
        fn nobody_is_overtaken_for_ever(
            mine in any::<i32>(), theirs in any::<i32>(), until in any::<u32>(), uncached in any::<u64>(),
            now in 0u64..1_000_000_000, after in 0u64..1_000_000,
        ) {
            let me = place(mine, u64::from(u32::MAX) + now, u64::MAX, now, 0);
            let other = place(theirs, u64::from(until), uncached, now + after, 1);
            if Duration::from_millis(after) >= overtaken_for(mine, AGING) {
                prop_assert!(me < other);
            }
        }

        #[test]
        fn a_wait_of_one_aging_time_is_worth_a_class(class in MIN_CLASS..MAX_CLASS, now in 0u64..1_000_000) {
            let waits = place(class, 2_000_000, 1, now, 0);
            let comes = place(class + 1, 2_000_000, 1, now + 5_000, 1);
            prop_assert!(waits < comes);
        }
    }
}
