//! Replays the golden vectors, which `replay_vectors.py` made with other implementations of the primitives.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use armature_kv_hash::{Extra, HASH_SCHEME, RootKey, RootParts, SequenceHasher, set_digest};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    scheme: String,
    sequences: Vec<Sequence>,
    sets: Vec<Set>,
}

#[derive(Deserialize)]
struct Sequence {
    name: String,
    model_digest: String,
    adapter_digest: String,
    tenant: String,
    cache_salt: String,
    block_size: usize,
    tokens: Vec<u32>,
    extras: BTreeMap<usize, Vec<ExtraCase>>,
    root_key: String,
    seed: String,
    sequence_hashes: Vec<String>,
}

#[derive(Deserialize)]
struct ExtraCase {
    kind: u8,
    offset: u16,
    digest: String,
}

#[derive(Deserialize)]
struct Set {
    blocks: Vec<(String, u8)>,
    digest: String,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../vectors/armature-xxh3-v1.json")).unwrap()
}

#[test]
fn sequences_hash_to_the_golden_values() {
    let vectors = vectors();
    assert_eq!(vectors.scheme, HASH_SCHEME);
    assert!(vectors.sequences.len() >= 12);
    for case in vectors.sequences {
        let root = RootKey::new(&RootParts {
            model_digest: &unhex(&case.model_digest),
            adapter_digest: &unhex(&case.adapter_digest),
            tenant: &case.tenant,
            cache_salt: &case.cache_salt,
        });
        assert_eq!(root.as_bytes().to_vec(), unhex(&case.root_key), "{}", case.name);
        assert_eq!(root.seed(), number(&case.seed), "{}", case.name);
        let mut hasher = SequenceHasher::new(root, case.block_size);
        let hashes: Vec<u64> = case
            .tokens
            .chunks_exact(case.block_size)
            .enumerate()
            .map(|(i, block)| {
                let extras: Vec<Extra> = case
                    .extras
                    .get(&i)
                    .into_iter()
                    .flatten()
                    .map(|e| Extra {
                        kind: e.kind,
                        offset: e.offset,
                        digest: unhex(&e.digest).try_into().unwrap(),
                    })
                    .collect();
                hasher.push_block(block, &extras)
            })
            .collect();
        let expected: Vec<u64> = case.sequence_hashes.iter().map(|h| number(h)).collect();
        assert_eq!(hashes, expected, "{}", case.name);
    }
}

#[test]
fn sets_digest_to_the_golden_values() {
    for case in vectors().sets {
        let digest = set_digest(case.blocks.iter().map(|(hash, tier)| (number(hash), *tier)));
        assert_eq!(digest, number(&case.digest));
    }
}
