//! Names and keys of a transfer. Ids fence and never authorise; the secret authorises and never prints.

use std::fmt;
use std::str::FromStr;

/// One hand-off of KV from one prefill worker to one decode worker: 128 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u128);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The right to write into (tcp) or read for (shm) one transfer: 128 random bits, made for it alone.
#[derive(Clone)]
pub struct TransferSecret([u8; 16]);

impl TransferSecret {
    /// The secret of these bytes; they must be fresh and come from a cryptographic generator.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for the control stream and for keying a proof; for nothing else.
    pub fn expose(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for TransferSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransferSecret(..)")
    }
}

/// Number of a grant within its transfer: 0, 1, 2... in the order of granting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowIndex(pub u32);

/// A block of the other side's pool: never usable as one of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerBlock(pub u32);

/// One life of a worker process, new at every start. Names the socket of its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Text that is not 16 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an incarnation is 16 hex digits")]
pub struct IncarnationError;

impl FromStr for Incarnation {
    type Err = IncarnationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(IncarnationError);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| IncarnationError)
    }
}

/// One boot of one kernel: processes with equal boot ids may share memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootId(pub String);

impl BootId {
    /// The id of the running kernel, from `/proc/sys/kernel/random/boot_id`.
    ///
    /// # Errors
    /// What reading that file answers.
    pub fn of_this_host() -> std::io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self(text.trim().to_owned()))
    }
}
