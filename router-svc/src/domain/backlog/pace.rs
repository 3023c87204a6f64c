//! How long a request is expected to wait: as many intervals between requests that left as there are before it.

use std::time::Duration;

use crate::domain::units::Time;

/// Weight of the newest interval: the last twenty or so requests say how fast it goes.
const NEWEST: f64 = 0.1;

/// Intervals between requests that left the backlog, over the times in which some waited.
#[derive(Debug, Default)]
pub struct Pace {
    interval: Option<f64>,
    last: Option<Time>,
}

impl Pace {
    /// The first one begins to wait.
    pub fn begin(&mut self, now: Time) {
        self.last = Some(now);
    }

    /// So many left together.
    pub fn left(&mut self, many: usize, now: Time) {
        if many == 0 {
            return;
        }
        if let Some(last) = self.last {
            let each = now.since(last).as_secs_f64() / many as f64;
            let old = (1.0 - NEWEST).powi(i32::try_from(many).unwrap_or(i32::MAX));
            let known = self.interval.unwrap_or(each);
            self.interval = Some(known * old + each * (1.0 - old));
        }
        self.last = Some(now);
    }

    /// Until so many have left; zero when nobody has yet.
    pub fn wait(&self, many: usize) -> Duration {
        let seconds = self.interval.unwrap_or(0.0) * many as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_happens() {
        let at = |millis| Time(Duration::from_millis(millis));
        let mut pace = Pace::default();
        assert_eq!(pace.wait(1000), Duration::ZERO);
        pace.begin(at(0));
        pace.left(2, at(200));
        assert_eq!(pace.wait(10).as_millis(), 1000);
        for n in 1..=100 {
            pace.left(1, at(200 + n * 500));
        }
        assert_eq!(pace.wait(10).as_millis(), 4999);
        // Times in which nobody waited do not count.
        pace.begin(at(10_000_000));
        pace.left(1, at(10_000_500));
        assert!((4_990..5_000).contains(&pace.wait(10).as_millis()));
    }
}
