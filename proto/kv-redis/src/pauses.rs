//! Pauses between attempts.

use std::time::Duration;

/// First pause.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause: what Redis coming back may take to be noticed.
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double up to 5 s, each shortened by up to a half by who it is that waits, so that a thousand workers do not return in step.
#[derive(Debug, Clone)]
pub struct Pauses {
    who: u64,
    next: Duration,
    taken: u32,
}

impl Pauses {
    /// Of an instance, by its id.
    pub fn new(who: u64) -> Self {
        Self { who, next: FIRST, taken: 0 }
    }

    /// The attempt was good: the next failure pauses briefly.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// How long to wait now.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        self.taken = self.taken.wrapping_add(1);
        // Ids are random: other bits of one for each attempt.
        let share = self.who.rotate_left(self.taken.wrapping_mul(11)) & 0xff;
        pause.mul_f64(1.0 - share as f64 / 512.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_differ_between_instances_and_start_again() {
        let (mut one, mut other) = (Pauses::new(0x0123_4567_89ab_cdef), Pauses::new(0xfedc_ba98_7654_3210));
        let mut longest = FIRST;
        for _ in 0..10 {
            let (a, b) = (one.pause(), other.pause());
            for pause in [a, b] {
                assert!(pause <= longest && pause > longest / 2, "{pause:?}");
            }
            assert_ne!(a, b);
            longest = (longest * 2).min(LONGEST);
        }
        one.reset();
        assert!(one.pause() <= FIRST);
    }
}
