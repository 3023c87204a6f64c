//! The only map from this service's errors to what callers see.

use std::time::Duration;

use armature_contracts::error::{Fault, Reason};
use tonic::Status;

use crate::adapters::card::CardError;
use crate::domain::instance::Digest;
use crate::domain::store::{ChangeError, RegisterError};
use crate::ports::{CampaignError, PutError, Unreachable};

/// When a full or unreachable registry is worth another try.
const RETRY: Duration = Duration::from_secs(1);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The request is malformed.
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// Register.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// SetStatus, Deregister.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// PutCard: the card.
    #[error(transparent)]
    Card(#[from] CardError),
    /// PutCard, PutArtifact: the room.
    #[error(transparent)]
    Put(#[from] PutError),
    /// PutArtifact: too large.
    #[error("the artifact has {size} bytes, more than {limit}")]
    ArtifactTooLarge {
        /// Of the artifact.
        size: usize,
        /// The bound.
        limit: usize,
    },
    /// PutArtifact: not what its digest says.
    #[error("the artifact's BLAKE3-256 is {0}, not the digest it was sent with")]
    ArtifactDigest(Digest),
    /// GetCard.
    #[error("card {0} is not stored")]
    CardUnknown(Digest),
    /// GetArtifact.
    #[error("artifact {0} is not stored")]
    ArtifactUnknown(Digest),
    /// Campaign.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// Any.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Watch.
    #[error("{limit} watchers are served, which is the limit (limits.watchers)")]
    TooManyWatchers {
        /// The bound.
        limit: usize,
    },
    /// KeepAlive.
    #[error("one stream keeps one lease, and this one is of instance {0}")]
    OtherInstance(armature_contracts::ids::InstanceId),
    /// The task that verifies content died.
    #[error("verification failed: {0}")]
    Verification(tokio::task::JoinError),
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let text = error.to_string();
        let fault = |reason| Fault::new(reason, text.clone());
        match error {
            CallError::Invalid(fault) => fault,
            CallError::Register(error) => register(&error, text),
            CallError::Change(ChangeError::Fenced(id)) => {
                fault(Reason::InstanceFenced).resource("instance", id.to_string())
            }
            CallError::Change(ChangeError::Unknown(id) | ChangeError::Elsewhere(id)) => {
                fault(Reason::LeaseUnknown).resource("instance", id.to_string())
            }
            CallError::Change(ChangeError::Static(_)) => Fault::invalid("instance_id", text),
            CallError::Card(_) => fault(Reason::ArtifactInvalid).resource("card", ""),
            CallError::ArtifactTooLarge { .. } | CallError::ArtifactDigest(_) => {
                fault(Reason::ArtifactInvalid).resource("artifact", "")
            }
            CallError::CardUnknown(digest) => fault(Reason::CardUnknown).resource("card", digest.to_string()),
            CallError::ArtifactUnknown(digest) => {
                fault(Reason::ArtifactUnknown).resource("artifact", digest.to_string())
            }
            CallError::Put(PutError::NoRoom(_))
            | CallError::Campaign(CampaignError::TooManyNames(_))
            | CallError::TooManyWatchers { .. } => fault(Reason::Overloaded).retry_after(RETRY),
            CallError::OtherInstance(_) => Fault::invalid("instance_id", text),
            CallError::Verification(_) => fault(Reason::Internal),
            CallError::Change(ChangeError::Unreachable)
            | CallError::Put(PutError::Unreachable(_))
            | CallError::Campaign(CampaignError::Unreachable(_))
            | CallError::Unreachable(_) => fault(Reason::BackendUnreachable).retry_after(RETRY),
        }
        .into()
    }
}

fn register(error: &RegisterError, text: String) -> Fault {
    match error {
        RegisterError::Fenced(id) => {
            Fault::new(Reason::InstanceFenced, text).resource("instance", id.to_string())
        }
        RegisterError::CardUnknown(digest) => {
            Fault::new(Reason::CardUnknown, text).resource("card", digest.to_string())
        }
        RegisterError::BlockSizeMismatch { .. } => Fault::new(Reason::BlockSizeMismatch, text),
        RegisterError::Full { .. } => Fault::new(Reason::Overloaded, text).retry_after(RETRY),
        RegisterError::TooLarge { .. } => Fault::invalid("instance", text),
        RegisterError::Static(_) => Fault::invalid("instance.instance_id", text),
        RegisterError::Unreachable => Fault::new(Reason::BackendUnreachable, text).retry_after(RETRY),
    }
}
