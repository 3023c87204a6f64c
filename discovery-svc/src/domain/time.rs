//! A point in time, as an argument.

use std::ops::Add;
use std::time::Duration;

/// Time since an origin that the shell chose (its start); monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl Moment {
    /// How long ago `earlier` was; zero when it is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}
