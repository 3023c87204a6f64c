//! Where a rank's state lies: key names. All keys of a rank share a hash tag, so that a cluster keeps them in one slot.

use std::fmt;
use std::str::FromStr;

use armature_contracts::ids::{InstanceId, WorkerRank};

/// First part of every key and channel; its number is that of this layout.
pub const PREFIX: &str = "armature:kv:1";

/// The keys of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankKeys {
    /// Stream of event batches: entry `<n>-0` is batch n.
    pub batches: String,
    /// Stream of snapshot pointers: entry `<n>-0` says that the snapshot at batch n is complete. The newest two are kept.
    pub snapshots: String,
}

impl RankKeys {
    /// The keys of `rank` in `namespace`.
    pub fn new(namespace: &str, rank: WorkerRank) -> Self {
        let tag = format!("{PREFIX}:{{{namespace}/{}/{}}}", rank.instance, rank.dp_rank);
        Self { batches: format!("{tag}:batches"), snapshots: format!("{tag}:snapshots") }
    }

    /// Hash with the chunks of the snapshot at batch `at`: field i is chunk i.
    pub fn chunks(&self, at: u64) -> String {
        format!("{}:{at}", self.snapshots)
    }
}

/// The channel on which a namespace's publishers name the ranks that have a new batch.
pub fn channel(namespace: &str) -> String {
    format!("{PREFIX}:{namespace}:changed")
}

/// A notification: the rank with a new batch. A hint: it may be lost, repeated or late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice(pub WorkerRank);

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.instance, self.0.dp_rank)
    }
}

/// Text that is no notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a notification is the instance as 16 hex digits, a slash and the rank")]
pub struct NotANotice;

impl FromStr for Notice {
    type Err = NotANotice;

    fn from_str(text: &str) -> Result<Self, NotANotice> {
        let (instance, dp_rank) = text.split_once('/').ok_or(NotANotice)?;
        let instance = u64::from_str_radix(instance, 16).map_err(|_| NotANotice)?;
        let dp_rank = dp_rank.parse().map_err(|_| NotANotice)?;
        Ok(Self(WorkerRank { instance: InstanceId(instance), dp_rank }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: WorkerRank = WorkerRank { instance: InstanceId(0xab), dp_rank: 3 };

    #[test]
    fn names_are_the_wire_layout() {
        let keys = RankKeys::new("default", RANK);
        assert_eq!(keys.batches, "armature:kv:1:{default/00000000000000ab/3}:batches");
        assert_eq!(keys.snapshots, "armature:kv:1:{default/00000000000000ab/3}:snapshots");
        assert_eq!(keys.chunks(7), "armature:kv:1:{default/00000000000000ab/3}:snapshots:7");
        assert_eq!(channel("default"), "armature:kv:1:default:changed");
        assert_eq!(Notice(RANK).to_string(), "00000000000000ab/3");
    }

    #[test]
    fn notices_are_read_back_and_others_refused() {
        assert_eq!(Notice(RANK).to_string().parse(), Ok(Notice(RANK)));
        for wrong in ["", "ab", "xy/0", "00000000000000ab/", "00000000000000ab/-1"] {
            assert_eq!(wrong.parse::<Notice>(), Err(NotANotice), "{wrong}");
        }
    }
}
