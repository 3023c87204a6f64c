//! Pauses between attempts: they double from one failure to the next and are jittered, so that routers do not return to a worker in step.

use std::time::Duration;

use rand::RngExt;

/// Pauses of one stream.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Starting at `first`, at most `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The attempt was good: the next failure pauses briefly.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// How long to wait now: between half of and the whole pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_millis(150));
        let mut backoff = Backoff::new(first, longest);
        for expected in [50, 100, 150, 150] {
            let expected = Duration::from_millis(expected);
            let pause = backoff.pause();
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= first);
    }
}
