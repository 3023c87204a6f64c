//! Named places where a test can hold a process, to kill it there.
//!
//! `fault_point = "source.accepted"` in the configuration makes this worker stop for ever when a hand-off gets
//! there, after it has logged `fault point reached`. Without it nothing is different.

use std::fmt;
use std::str::FromStr;

/// A phase of a hand-off at the prefill worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FaultPoint {
    /// The work is queued, Accepted not yet said.
    SourceAccepted,
    /// Begin has been said.
    SourceBegun,
    /// The first grant has come.
    SourceGranted,
    /// The first piece is on its way.
    SourcePiece,
    /// Everything is computed, PrefillDone not yet said.
    SourceComputed,
    /// PrefillDone has been said.
    SourceDone,
    /// The Ack has come and is not confirmed.
    SourceAcked,
}

impl FaultPoint {
    /// Every point, in the order of a hand-off.
    pub const ALL: [Self; 7] = [
        Self::SourceAccepted,
        Self::SourceBegun,
        Self::SourceGranted,
        Self::SourcePiece,
        Self::SourceComputed,
        Self::SourceDone,
        Self::SourceAcked,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::SourceAccepted => "source.accepted",
            Self::SourceBegun => "source.begun",
            Self::SourceGranted => "source.granted",
            Self::SourcePiece => "source.piece",
            Self::SourceComputed => "source.computed",
            Self::SourceDone => "source.done",
            Self::SourceAcked => "source.acked",
        }
    }
}

impl fmt::Display for FaultPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<FaultPoint> for String {
    fn from(point: FaultPoint) -> Self {
        point.name().into()
    }
}

/// No fault point has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no fault point {0:?}; known: {known}", known = FaultPoint::ALL.map(FaultPoint::name).join(", "))]
pub struct UnknownFaultPoint(String);

impl FromStr for FaultPoint {
    type Err = UnknownFaultPoint;
    fn from_str(text: &str) -> Result<Self, UnknownFaultPoint> {
        Self::ALL.into_iter().find(|point| point.name() == text).ok_or_else(|| UnknownFaultPoint(text.into()))
    }
}

impl TryFrom<String> for FaultPoint {
    type Error = UnknownFaultPoint;
    fn try_from(text: String) -> Result<Self, UnknownFaultPoint> {
        text.parse()
    }
}

/// Which point holds this process, if any.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultPoints(pub Option<FaultPoint>);

impl FaultPoints {
    /// Passes, or stops here for ever.
    pub async fn reach(&self, point: FaultPoint) {
        if self.0 == Some(point) {
            tracing::warn!(%point, "fault point reached");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused_with_the_list() {
        for point in FaultPoint::ALL {
            assert_eq!(point.to_string().parse(), Ok(point));
        }
        let error = "source.nothing".parse::<FaultPoint>().unwrap_err().to_string();
        assert!(error.contains("source.accepted") && error.contains("source.nothing"), "{error}");
    }
}
