//! Newtypes of the ids that services exchange, and how they print.

use std::fmt;
use std::str::FromStr;

use crate::{inference, kv};

/// An id that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} is not {expected}")]
pub struct InvalidId {
    what: &'static str,
    value: String,
    expected: &'static str,
}

/// One incarnation of a process. Random, never 0; prints as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for InstanceId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        (text.len() == 16)
            .then(|| u64::from_str_radix(text, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| InvalidId { what: "instance id", value: text.into(), expected: "16 hex digits" })
    }
}

/// A rank of an instance: what is chosen, excluded, reported, subscribed to and indexed.
/// Prints as the instance, with `/rank` when that is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerRank {
    /// The instance.
    pub instance: InstanceId,
    /// Data-parallel rank.
    pub dp_rank: u32,
}

impl WorkerRank {
    /// Rank 0 of an instance.
    pub fn first(instance: InstanceId) -> Self {
        Self { instance, dp_rank: 0 }
    }
}

impl fmt::Display for WorkerRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dp_rank {
            0 => self.instance.fmt(f),
            rank => write!(f, "{}/{rank}", self.instance),
        }
    }
}

impl FromStr for WorkerRank {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let Some((instance, rank)) = text.split_once('/') else { return Ok(Self::first(text.parse()?)) };
        let invalid =
            |_| InvalidId { what: "rank", value: text.into(), expected: "16 hex digits, / and a number" };
        Ok(Self { instance: instance.parse()?, dp_rank: rank.parse().map_err(invalid)? })
    }
}

impl From<WorkerRank> for kv::v1::WorkerRank {
    fn from(rank: WorkerRank) -> Self {
        Self { instance_id: rank.instance.0, dp_rank: rank.dp_rank }
    }
}

impl From<kv::v1::WorkerRank> for WorkerRank {
    fn from(rank: kv::v1::WorkerRank) -> Self {
        Self { instance: InstanceId(rank.instance_id), dp_rank: rank.dp_rank }
    }
}

/// Names one attempt of one request: 128 random bits drawn by the frontend, and which decision of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationKey {
    /// Random.
    pub id: u128,
    /// From 1; a new decision (after a refusal, a migration) raises it.
    pub attempt: u32,
}

impl fmt::Display for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}#{}", self.id, self.attempt)
    }
}

impl From<ReservationKey> for inference::v1::ReservationKey {
    fn from(key: ReservationKey) -> Self {
        Self { id: key.id.to_be_bytes().to_vec().into(), attempt: key.attempt }
    }
}

impl TryFrom<&inference::v1::ReservationKey> for ReservationKey {
    type Error = InvalidId;
    fn try_from(key: &inference::v1::ReservationKey) -> Result<Self, InvalidId> {
        let bytes: [u8; 16] = key.id.as_ref().try_into().map_err(|_| InvalidId {
            what: "reservation id",
            value: format!("{} bytes", key.id.len()),
            expected: "16 bytes",
        })?;
        Ok(Self { id: u128::from_be_bytes(bytes), attempt: key.attempt })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn instance_ids_print_as_sixteen_hex_digits_and_read_back() {
        let id = InstanceId(0xab);
        assert_eq!(id.to_string(), "00000000000000ab");
        assert_eq!("00000000000000ab".parse::<InstanceId>().unwrap(), id);
        assert!("ab".parse::<InstanceId>().is_err());
        assert!("00000000000000xy".parse::<InstanceId>().is_err());
    }

    #[test]
    fn reservation_keys_survive_the_wire_and_short_ones_are_refused() {
        let key = ReservationKey { id: 7 << 100, attempt: 3 };
        let wire = inference::v1::ReservationKey::from(key);
        assert_eq!(ReservationKey::try_from(&wire).unwrap(), key);
        let short = inference::v1::ReservationKey { id: vec![1, 2].into(), attempt: 1 };
        assert_eq!(
            ReservationKey::try_from(&short).unwrap_err().to_string(),
            "reservation id \"2 bytes\" is not 16 bytes"
        );
    }
}
