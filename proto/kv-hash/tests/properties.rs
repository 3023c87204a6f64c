//! What must hold for any input.
#![allow(clippy::unwrap_used)]

use armature_kv_hash::{RootKey, RootParts, block_digest, sequence_hashes, set_digest};
use proptest::prelude::*;

fn root(tenant: &str, cache_salt: &str) -> RootKey {
    RootKey::new(&RootParts { model_digest: &[7; 32], adapter_digest: &[], tenant, cache_salt })
}

proptest! {
    #[test]
    fn a_prefix_of_the_tokens_has_a_prefix_of_the_hashes(tokens in prop::collection::vec(any::<u32>(), 0..200), cut in 0usize..200, size in 1usize..20) {
        let cut = cut.min(tokens.len());
        let all = sequence_hashes(root("t", ""), size, &tokens);
        let some = sequence_hashes(root("t", ""), size, &tokens[..cut]);
        prop_assert_eq!(all.len(), tokens.len() / size);
        prop_assert_eq!(&all[..some.len()], &some[..]);
    }

    #[test]
    fn a_changed_token_changes_its_block_and_all_after_it(tokens in prop::collection::vec(any::<u32>(), 16..200), at in any::<prop::sample::Index>(), flip in 1u32..) {
        let mut changed = tokens.clone();
        let at = at.index(tokens.len() / 16 * 16);
        changed[at] ^= flip;
        let (a, b) = (sequence_hashes(root("t", ""), 16, &tokens), sequence_hashes(root("t", ""), 16, &changed));
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            prop_assert_eq!(a == b, i < at / 16, "block {}", i);
        }
    }

    #[test]
    fn tenant_and_salt_never_blend(a in "[a-z]{0,6}", b in "[a-z]{0,6}", c in "[a-z]{0,6}", d in "[a-z]{0,6}") {
        prop_assert_eq!(root(&a, &b) == root(&c, &d), (a, b) == (c, d));
    }

    #[test]
    fn the_set_digest_is_order_free_and_incremental(mut blocks in prop::collection::hash_set((any::<u64>(), 1u8..5), 0..50).prop_map(|s| s.into_iter().collect::<Vec<_>>())) {
        let whole = set_digest(blocks.iter().copied());
        blocks.reverse();
        prop_assert_eq!(set_digest(blocks.iter().copied()), whole);
        if let Some((hash, tier)) = blocks.pop() {
            prop_assert_eq!(set_digest(blocks.iter().copied()), whole.wrapping_sub(block_digest(hash, tier)));
        }
    }
}
