//! What a request asks of the router.

use std::collections::BTreeMap;
use std::sync::Arc;

use armature_contracts::ids::WorkerRank;
use xxhash_rust::xxh3::Xxh3;

use super::Overrides;
use crate::domain::units::{BlockSize, Tokens};
use crate::domain::worker::ServedSet;

/// Where the prompt is to be computed, by the client's wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefillChoice {
    /// Where it costs less.
    #[default]
    ByCost,
    /// On a prefill worker whenever one is ready.
    Remote,
    /// On the decode worker.
    Local,
}

/// A conversation, by a hash of tenant and session id: equal ids of two tenants are two conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey(pub u64);

impl SessionKey {
    /// Of a tenant's session; none without an id.
    pub fn of(tenant: &str, id: &str) -> Option<Self> {
        if id.is_empty() {
            return None;
        }
        let mut hash = Xxh3::new();
        hash.update(&(tenant.len() as u64).to_le_bytes());
        hash.update(tenant.as_bytes());
        hash.update(id.as_bytes());
        Some(Self(hash.digest()))
    }
}

/// A low-rank adapter, by the capability of the workers that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter(Arc<str>);

impl Adapter {
    /// The adapter of this name.
    pub fn named(name: &str) -> Self {
        Self(format!("adapter:{name}").into())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0["adapter:".len()..]
    }

    /// Capability on the card of a worker that has it.
    pub fn capability(&self) -> &str {
        &self.0
    }
}

/// What a client asks of the choice.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Constraints {
    /// Label and value that a worker must carry.
    pub labels: BTreeMap<String, String>,
    /// Only this decode worker.
    pub pin_decode: Option<WorkerRank>,
    /// Only this prefill worker.
    pub pin_prefill: Option<WorkerRank>,
    /// Only these; empty: any.
    pub allow: Vec<WorkerRank>,
    /// Never these.
    pub exclude: Vec<WorkerRank>,
    /// Where the prompt is computed.
    pub prefill: PrefillChoice,
    /// Only workers that have it.
    pub adapter: Option<Adapter>,
    /// The conversation that the request belongs to.
    pub session: Option<SessionKey>,
    /// Weights of its own.
    pub overrides: Overrides,
}

/// What is to be decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Deployment.
    pub namespace: Arc<str>,
    /// Workers that can serve it.
    pub set: ServedSet,
    /// isl: all of the prompt, tokens generated before a migration included.
    pub prompt: Tokens,
    /// Scheme and block size of the hash list; none without one.
    pub hashes: Option<(Arc<str>, BlockSize)>,
    /// Choices that decode in parallel, at least 1.
    pub choices: u32,
    /// It was begun by a worker that gave it up or was lost: workers take it before new requests.
    pub migrated: bool,
    /// Expected output, when the client says so.
    pub expected_output: Option<Tokens>,
    /// Wishes.
    pub constraints: Constraints,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_its_tenants() {
        assert_eq!(SessionKey::of("t", ""), None);
        assert_eq!(SessionKey::of("t", "s"), SessionKey::of("t", "s"));
        assert_ne!(SessionKey::of("t", "s"), SessionKey::of("ts", ""));
        assert_ne!(SessionKey::of("a", "bc"), SessionKey::of("ab", "c"));
    }
}
