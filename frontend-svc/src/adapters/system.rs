//! Time of day and random numbers of the system.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};

use crate::ports::{Calendar, Entropy};

/// The system's clock, in UTC.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemCalendar;

impl Calendar for SystemCalendar {
    fn now(&self) -> ZonedDateTime {
        Timestamp::now().to_zoned_datetime(TimeZone::UTC)
    }
}

/// The thread's generator, seeded by the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn bits(&self) -> u128 {
        rand::random()
    }
}
