//! The root key: everything that must be equal before two prompts may share KV.

use crate::HASH_SCHEME;

/// What a cache identity consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RootParts<'a> {
    /// Raw digest of the model's weights, from its card (never from the requested name).
    pub model_digest: &'a [u8],
    /// Raw digest of the adapter; empty when there is none.
    pub adapter_digest: &'a [u8],
    /// Tenant, from authentication (never from the request); empty when there is none.
    pub tenant: &'a str,
    /// Salt that refines inside a tenant; empty when there is none.
    pub cache_salt: &'a str,
}

/// BLAKE3-256 over scheme, model, adapter, tenant and salt, each as u32-LE byte length, then bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RootKey([u8; 32]);

impl RootKey {
    /// Derives the key of `parts` under the scheme of this crate.
    ///
    /// # Panics
    /// When a part is 4 GiB or longer.
    pub fn new(parts: &RootParts<'_>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in [
            HASH_SCHEME.as_bytes(),
            parts.model_digest,
            parts.adapter_digest,
            parts.tenant.as_bytes(),
            parts.cache_salt.as_bytes(),
        ] {
            let len = u32::try_from(part.len()).expect("a part of a cache identity is shorter than 4 GiB");
            hasher.update(&len.to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Seed of the local hashes: the first 8 bytes as a little-endian u64.
    pub fn seed(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(first)
    }
}
