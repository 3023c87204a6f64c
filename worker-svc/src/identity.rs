//! What this worker is, as other services are told and as requests must name it.

use armature_contracts::discovery::v1 as discovery;
use armature_contracts::kv::v1 as kv;

use crate::domain::request::CacheRoot;
use crate::ports::ModelSpec;
use armature_kv_hash::{HASH_SCHEME, RootKey, RootParts};

/// What a worker does with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Prefills and decodes.
    Aggregated,
    /// Prefills for decode workers.
    Prefill,
    /// Decodes; prefills when no prefill worker is named.
    Decode,
}

impl From<Role> for discovery::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Aggregated => Self::Aggregated,
            Role::Prefill => Self::Prefill,
            Role::Decode => Self::Decode,
        }
    }
}

/// The fixed facts, the same in every incarnation.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What the engine says of its model.
    pub spec: ModelSpec,
    /// Digest of model, layout without shard, rope and kernel: equal keys mean interchangeable KV.
    pub compat_key: [u8; 32],
}

impl Identity {
    /// The identity of a worker that runs `spec`.
    pub fn new(spec: ModelSpec) -> Self {
        let compat_key = compat_key(&spec);
        Self { spec, compat_key }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.spec.kv.block_size
    }

    /// The root under which blocks of `tenant` and `cache_salt` (and an adapter) are kept.
    pub fn root(&self, adapter_digest: &[u8], tenant: &str, cache_salt: &str) -> CacheRoot {
        CacheRoot {
            model_digest: self.spec.model_digest.to_vec(),
            adapter_digest: adapter_digest.to_vec(),
            tenant: tenant.to_owned(),
            cache_salt: cache_salt.to_owned(),
        }
    }

    /// How this worker's KV lies in memory: one shard, full attention. Of an engine of somebody else nothing is known but that it is no other's.
    pub fn layout(&self) -> kv::KvLayout {
        let shape = &self.spec.kv;
        if shape.layers == 0 {
            return kv::KvLayout {
                groups: Vec::new(),
                shard: None,
                compat_key: self.compat_key.to_vec().into(),
            };
        }
        let tensor = |name: &str| kv::TensorSpec {
            name: name.into(),
            dtype: "f32".into(),
            shape: vec![shape.block_size as u32, shape.kv_heads as u32, shape.head_dim as u32],
            scale: 0.0,
        };
        kv::KvLayout {
            groups: vec![kv::LayerGroup {
                kind: kv::GroupKind::Full.into(),
                layers: shape.layers as u32,
                tensors: vec![tensor("k"), tensor("v")],
                window: 0,
            }],
            shard: Some(self.shard()),
            compat_key: self.compat_key.to_vec().into(),
        }
    }

    /// The whole model.
    pub fn shard(&self) -> kv::ShardMap {
        kv::ShardMap {
            tensor_parallel: 1,
            pipeline_parallel: 1,
            layer_start: 0,
            layer_count: self.spec.kv.layers as u32,
            head_start: 0,
            head_count: self.spec.kv.kv_heads as u32,
        }
    }
}

/// Key of a cache root: what [`armature_kv_hash`] derives from the same parts.
pub fn root_key(root: &CacheRoot) -> RootKey {
    RootKey::new(&RootParts {
        model_digest: &root.model_digest,
        adapter_digest: &root.adapter_digest,
        tenant: &root.tenant,
        cache_salt: &root.cache_salt,
    })
}

/// BLAKE3-256 over the parts that make KV interchangeable, each as u32-LE length, then bytes.
fn compat_key(spec: &ModelSpec) -> [u8; 32] {
    let shape = &spec.kv;
    let layout = format!(
        "full f32 [block][layer][k|v][token][head][dim] {} {} {} {}",
        shape.layers, shape.kv_heads, shape.head_dim, shape.block_size
    );
    let mut hasher = blake3::Hasher::new();
    for part in [
        &spec.model_digest[..],
        layout.as_bytes(),
        spec.rope.as_bytes(),
        spec.kernel.as_bytes(),
        HASH_SCHEME.as_bytes(),
    ] {
        hasher.update(&(part.len() as u32).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::KvGeometry;

    fn spec() -> ModelSpec {
        ModelSpec {
            model_digest: [1; 32],
            name: "m".into(),
            vocab_size: 10,
            context_length: 100,
            kv: KvGeometry { layers: 2, kv_heads: 2, head_dim: 4, block_size: 16 },
            rope: "10000".into(),
            kernel: "scalar".into(),
            eos_token_ids: vec![],
            bos_token_id: None,
        }
    }

    #[test]
    fn whatever_changes_kv_changes_the_compat_key_and_nothing_else_does() {
        let base = compat_key(&spec());
        let other = |change: fn(&mut ModelSpec)| {
            let mut spec = spec();
            change(&mut spec);
            compat_key(&spec)
        };
        assert_ne!(base, other(|spec| spec.model_digest[0] = 2));
        assert_ne!(base, other(|spec| spec.kernel = "avx2".into()));
        assert_ne!(base, other(|spec| spec.rope = "100000".into()));
        assert_ne!(base, other(|spec| spec.kv.block_size = 32));
        assert_eq!(base, other(|spec| spec.name = "other".into()));
    }
}
