//! One incarnation of a process, as the registry knows it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use armature_contracts::ids::InstanceId;

/// Deployments that do not see each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(pub String);

impl Default for Namespace {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

/// Which service an instance is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Component {
    Worker,
    Router,
    Frontend,
    Planner,
    Kvbm,
}

impl Component {
    /// Every component.
    pub const ALL: [Self; 5] = [Self::Worker, Self::Router, Self::Frontend, Self::Planner, Self::Kvbm];

    /// Its name in configuration, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Router => "router",
            Self::Frontend => "frontend",
            Self::Planner => "planner",
            Self::Kvbm => "kvbm",
        }
    }
}

/// What an instance is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Registered, not yet serving.
    Starting,
    /// Serving.
    Ready,
    /// Takes no new work.
    Draining,
    /// In doubt: kept, ranked last. Never published by an instance, only shown.
    Suspect,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Ready, Self::Draining, Self::Suspect];

    /// Its name in configuration, metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Suspect => "suspect",
        }
    }

    /// What is shown of an instance in doubt. STARTING and DRAINING stay: SUSPECT would make them eligible, ranked last.
    #[must_use]
    pub fn doubted(self) -> Self {
        match self {
            Self::Ready => Self::Suspect,
            other => other,
        }
    }
}

/// Grows whenever an instance takes a new lease; readers merge by instance id, the highest wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseEpoch(pub u64);

/// One replica of this service, random per start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(pub u64);

/// BLAKE3-256 of a card or an artifact; prints as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text or bytes that are no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 32 bytes (64 hex digits)")]
pub struct InvalidDigest;

impl FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes())).map_err(|_| InvalidDigest)
    }
}

impl TryFrom<&[u8]> for Digest {
    type Error = InvalidDigest;
    fn try_from(bytes: &[u8]) -> Result<Self, InvalidDigest> {
        bytes.try_into().map(Self).map_err(|_| InvalidDigest)
    }
}

/// Digest of a model's weights: instances with equal ones compute the same KV.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvIdentity(pub Vec<u8>);

/// Tokens per KV block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize(pub u32);

/// What the registry needs to know of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// Of the card itself.
    pub digest: Digest,
    /// Of the weights.
    pub kv_identity: KvIdentity,
    /// One per (namespace, kv identity).
    pub block_size: BlockSize,
    /// Tokenizer and template: kept while an instance shows the card.
    pub artifacts: Vec<Digest>,
    /// What it is called and what it does, for people and their tools: `model-smollm2`, `role-prefill`.
    pub tags: Vec<String>,
}

/// One incarnation of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Random, not 0, new per incarnation.
    pub id: InstanceId,
    /// Who sees it.
    pub namespace: Namespace,
    /// What it is.
    pub component: Component,
    /// Named addresses, `host:port` or `mem:name`.
    pub addresses: BTreeMap<String, String>,
    /// What it serves.
    pub card: Option<Digest>,
    /// As it published it, or as it is shown.
    pub status: Status,
    /// Of its lease.
    pub epoch: LeaseEpoch,
    /// For constraints.
    pub labels: BTreeMap<String, String>,
    /// Linux boot id of its host; may be empty.
    pub boot_id: String,
}
