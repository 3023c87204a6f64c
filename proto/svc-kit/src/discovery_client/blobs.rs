//! Cards and small artifacts, stored with discovery under the digest of their bytes.

use armature_contracts::discovery::v1 as proto;
use armature_contracts::error::Fault;
use armature_contracts::{MAX_ARTIFACT_BYTES, MAX_CARD_BYTES};
use bytes::Bytes;

use super::Discovery;
use super::instance::Digest;

/// The encoded model card of an instance and the artifacts it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelCardBytes {
    /// The encoded `ModelCard`.
    pub card: Bytes,
    /// Tokenizer, template: put before the card.
    pub artifacts: Vec<Bytes>,
}

/// Why a card or an artifact could not be had or stored.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Discovery refused or is away.
    #[error("{0}")]
    Discovery(Fault),
    /// What came is not what was asked for.
    #[error("the bytes received for {0} have another digest")]
    WrongDigest(Digest),
    /// Larger than discovery takes.
    #[error("{size} bytes are more than the limit of {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl From<tonic::Status> for BlobError {
    fn from(status: tonic::Status) -> Self {
        Self::Discovery(Fault::from_status(&status))
    }
}

impl Discovery {
    /// Stores the artifacts, then the card. Idempotent. Returns the card's digest.
    pub async fn put(&self, model: &ModelCardBytes) -> Result<Digest, BlobError> {
        for content in &model.artifacts {
            self.put_artifact(content).await?;
        }
        let digest = sized(&model.card, MAX_CARD_BYTES)?;
        let request = proto::PutCardRequest { digest: raw(digest), card: model.card.clone() };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.put_card(request).await }
        })
        .await?;
        Ok(digest)
    }

    /// Stores one artifact. Idempotent. Returns its digest.
    pub async fn put_artifact(&self, content: &Bytes) -> Result<Digest, BlobError> {
        let digest = sized(content, MAX_ARTIFACT_BYTES)?;
        let request = proto::PutArtifactRequest { digest: raw(digest), content: content.clone() };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.put_artifact(request).await }
        })
        .await?;
        Ok(digest)
    }

    /// The encoded card with this digest, verified.
    pub async fn card(&self, digest: Digest) -> Result<Bytes, BlobError> {
        let request = proto::GetCardRequest { digest: raw(digest) };
        let answer = self
            .call(|mut client| {
                let request = request.clone();
                async move { client.get_card(request).await }
            })
            .await?;
        verified(digest, answer.card)
    }

    /// The artifact with this digest, verified.
    pub async fn artifact(&self, digest: Digest) -> Result<Bytes, BlobError> {
        let request = proto::GetArtifactRequest { digest: raw(digest) };
        let answer = self
            .call(|mut client| {
                let request = request.clone();
                async move { client.get_artifact(request).await }
            })
            .await?;
        verified(digest, answer.content)
    }
}

fn raw(Digest(bytes): Digest) -> Bytes {
    Bytes::copy_from_slice(&bytes)
}

fn sized(bytes: &Bytes, limit: usize) -> Result<Digest, BlobError> {
    let size = bytes.len();
    if size > limit { Err(BlobError::TooLarge { size, limit }) } else { Ok(Digest::of(bytes)) }
}

fn verified(digest: Digest, bytes: Bytes) -> Result<Bytes, BlobError> {
    if Digest::of(&bytes) == digest { Ok(bytes) } else { Err(BlobError::WrongDigest(digest)) }
}
