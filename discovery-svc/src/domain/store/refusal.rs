//! Why a backend does not do what it is asked.

use crate::domain::instance::{BlockSize, Digest, InstanceId};

/// Why an instance was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The id was announced gone.
    #[error("instance {0} was announced gone: take a new id")]
    Fenced(InstanceId),
    /// The card is not stored.
    #[error("card {0} is not stored: put it first")]
    CardUnknown(Digest),
    /// Others serve the same weights with another block size.
    #[error("block size {asked} differs from the {present} of the same model in this namespace", asked = .asked.0, present = .present.0)]
    BlockSizeMismatch {
        /// Of the card.
        asked: BlockSize,
        /// Of the instances that are there.
        present: BlockSize,
    },
    /// No room.
    #[error("no room for another instance: {limit} is the limit ({key})")]
    Full {
        /// Which bound, by its key in the configuration.
        key: &'static str,
        /// The bound.
        limit: usize,
    },
    /// The file says what this instance is.
    #[error("instance {0} is defined by the file of the backend")]
    Static(InstanceId),
    /// The backend has no place for so large an instance, whatever else it keeps.
    #[error("the instance takes {size} bytes, and the backend keeps at most {limit}: shorten its labels")]
    TooLarge {
        /// As the backend would keep it.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// The backend does not answer.
    #[error("the backend is unreachable")]
    Unreachable,
}

/// Why an instance was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The id was announced gone.
    #[error("instance {0} was announced gone: take a new id")]
    Fenced(InstanceId),
    /// No such instance.
    #[error("instance {0} is not registered")]
    Unknown(InstanceId),
    /// Another replica holds its lease, and this one cannot speak for it.
    #[error("another replica holds the lease of instance {0}: register again")]
    Elsewhere(InstanceId),
    /// The file says what this instance is.
    #[error("instance {0} is defined by the file of the backend")]
    Static(InstanceId),
    /// The backend does not answer.
    #[error("the backend is unreachable")]
    Unreachable,
}
