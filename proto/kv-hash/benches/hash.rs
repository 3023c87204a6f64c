//! Sequence hashing of a long prompt, beside one XXH3 pass over the same bytes as the baseline.
#![allow(missing_docs)]

use armature_kv_hash::{RootKey, RootParts, sequence_hashes};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn hashing(c: &mut Criterion) {
    let tokens: Vec<u32> = (0..200_000u32).map(|i| i.wrapping_mul(2_654_435_761) % 49_152).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let root = RootKey::new(&RootParts { model_digest: &[7; 32], ..RootParts::default() });
    let mut group = c.benchmark_group("200k tokens");
    group.throughput(Throughput::Elements(tokens.len() as u64));
    group.bench_function("baseline: one pass over the bytes", |b| {
        b.iter(|| xxhash_rust::xxh3::xxh3_64(&bytes))
    });
    group.bench_function("sequence hashes, blocks of 16", |b| b.iter(|| sequence_hashes(root, 16, &tokens)));
    group.bench_function("sequence hashes, blocks of 64", |b| b.iter(|| sequence_hashes(root, 64, &tokens)));
    group.finish();
}

criterion_group!(benches, hashing);
criterion_main!(benches);
