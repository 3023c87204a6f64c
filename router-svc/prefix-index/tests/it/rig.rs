//! Small indexes and chains.

use armature_prefix_index::{Index, Options, Search, Worker};

/// Any function of both will do.
pub(crate) fn digest(hash: u64, tier: u8) -> u64 {
    (hash ^ u64::from(tier) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn index(max_bytes: usize, shards: usize, max_workers: usize) -> Index {
    let keys = [0x1357_9bdf_0246_8ace, 0xfeed_beef_1234_5677, 0x0bad_cafe_5555_aaaa];
    Index::new(Options { max_bytes, shards, max_workers, keys, digest }).unwrap()
}

/// Hashes of the blocks of a prompt: each names its block and everything before it.
pub(crate) fn chained(blocks: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut hash = 0u64;
    let next = |block: u64| {
        hash = (hash.rotate_left(23) ^ block).wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(block + 1);
        hash
    };
    blocks.into_iter().map(next).collect()
}

/// Chain `c`: it shares its first `c` blocks with the chains after it.
pub(crate) fn forked(c: u64, len: u64) -> Vec<u64> {
    chained((0..len).map(|i| if i < c { i } else { 1_000 * (c + 1) + i }))
}

/// What `find` says of one worker.
pub(crate) fn found(index: &Index, worker: Worker, prompt: &[u64]) -> u32 {
    let mut search = Search::default();
    let found = index.find(prompt, &mut search);
    let of_worker: Vec<_> = found.iter().filter(|(other, _)| *other == worker).collect();
    assert!(of_worker.len() <= 1, "a worker is named once");
    of_worker.first().map_or(0, |(_, depth)| *depth)
}
