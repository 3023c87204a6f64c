//! Time as the domain sees it: an argument.

use std::ops::Add;
use std::time::Duration;

/// A point in time: monotonic, counted from the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(pub Duration);

impl Time {
    /// The start of the process.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// A point `millis` milliseconds after the start of the process.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Time passed since `earlier`; zero when `earlier` lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}
