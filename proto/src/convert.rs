//! Vocabulary that every service reads from the wire.

use std::time::Duration;

/// A span of time from the wire; `None` when it is negative or not a duration at all. (The conversion of prost-types
/// normalises first, and overflows on what no honest peer sends.)
pub fn duration(wire: prost_types::Duration) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(wire.seconds).ok()?, u32::try_from(wire.nanos).ok()?);
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_spans_of_time_are_taken() {
        let wire = |seconds, nanos| duration(prost_types::Duration { seconds, nanos });
        assert_eq!(wire(1, 500_000_000), Some(Duration::from_millis(1500)));
        assert_eq!(wire(i64::MAX, 999_999_999), Some(Duration::new(i64::MAX as u64, 999_999_999)));
        for (seconds, nanos) in
            [(i64::MIN, -1), (i64::MIN, i32::MIN), (-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, i32::MAX)]
        {
            assert_eq!(wire(seconds, nanos), None, "{seconds} s {nanos} ns");
        }
    }
}
