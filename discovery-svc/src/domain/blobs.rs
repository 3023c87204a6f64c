//! Cards and artifacts by digest, bounded in bytes: what nobody refers to makes room, the least recently used first.

use std::collections::HashMap;

use bytes::Bytes;

use super::instance::Digest;

/// No room, because everything kept is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{size} bytes do not fit: {used} of {limit} bytes are in use")]
pub struct NoRoom {
    /// Of the blob.
    pub size: usize,
    /// Bytes of blobs in use.
    pub used: usize,
    /// The bound.
    pub limit: usize,
}

/// Content by digest, with a value derived from it.
#[derive(Debug)]
pub struct Blobs<V> {
    limit: usize,
    used: usize,
    clock: u64,
    by_digest: HashMap<Digest, Blob<V>>,
}

#[derive(Debug)]
struct Blob<V> {
    content: Bytes,
    value: V,
    last_use: u64,
}

impl<V> Blobs<V> {
    /// At most `limit` bytes of content.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: 0, clock: 0, by_digest: HashMap::new() }
    }

    /// Keeps `content`, which has been verified to have `digest`. What is not `in_use` may make room.
    pub fn put(
        &mut self,
        digest: Digest,
        content: Bytes,
        value: V,
        in_use: impl Fn(&Digest) -> bool,
    ) -> Result<(), NoRoom> {
        self.clock += 1;
        if let Some(known) = self.by_digest.get_mut(&digest) {
            known.last_use = self.clock;
            return Ok(());
        }
        let size = content.len();
        let kept = |blobs: &Self| -> usize {
            blobs
                .by_digest
                .iter()
                .filter(|(digest, _)| in_use(digest))
                .map(|(_, blob)| blob.content.len())
                .sum()
        };
        if self.used + size > self.limit {
            let used = kept(self);
            if used + size > self.limit {
                return Err(NoRoom { size, used, limit: self.limit });
            }
        }
        while self.used + size > self.limit {
            let idle = self.by_digest.iter().filter(|(digest, _)| !in_use(digest));
            let Some(oldest) = idle.min_by_key(|(_, blob)| blob.last_use).map(|(digest, _)| *digest) else {
                break;
            };
            if let Some(evicted) = self.by_digest.remove(&oldest) {
                self.used -= evicted.content.len();
            }
        }
        self.used += size;
        self.by_digest.insert(digest, Blob { content, value, last_use: self.clock });
        Ok(())
    }

    /// The content of `digest`.
    pub fn content(&mut self, digest: &Digest) -> Option<Bytes> {
        self.clock += 1;
        let blob = self.by_digest.get_mut(digest)?;
        blob.last_use = self.clock;
        Some(blob.content.clone())
    }

    /// The value of `digest`.
    pub fn value(&self, digest: &Digest) -> Option<&V> {
        self.by_digest.get(digest).map(|blob| &blob.value)
    }

    /// Bytes kept.
    pub fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stays_within_its_bytes_and_keeps_what_is_in_use(
            puts in prop::collection::vec((0u8..20, 1usize..40), 1..60),
            pinned in prop::collection::hash_set(0u8..20, 0..4),
        ) {
            let mut blobs = Blobs::new(100);
            let mut stored = std::collections::HashSet::new();
            let digest = |name: u8| Digest([name; 32]);
            let in_use = |it: &Digest| pinned.contains(&it.0[0]);
            for (name, size) in puts {
                let content = Bytes::from(vec![name; size]);
                if blobs.put(digest(name), content, (), in_use).is_ok() && pinned.contains(&name) {
                    stored.insert(name);
                }
                prop_assert!(blobs.used() <= 100);
                let total: usize = blobs.by_digest.values().map(|blob| blob.content.len()).sum();
                prop_assert_eq!(total, blobs.used());
                for name in &stored {
                    prop_assert!(blobs.value(&digest(*name)).is_some());
                }
            }
        }
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut blobs = Blobs::new(2);
        let put = |blobs: &mut Blobs<()>, name: u8| {
            blobs.put(Digest([name; 32]), Bytes::from_static(b"x"), (), |_| false)
        };
        assert_eq!(put(&mut blobs, 1), Ok(()));
        assert_eq!(put(&mut blobs, 2), Ok(()));
        assert!(blobs.content(&Digest([1; 32])).is_some());
        assert_eq!(put(&mut blobs, 3), Ok(()));
        assert!(blobs.content(&Digest([2; 32])).is_none());
        assert!(blobs.content(&Digest([1; 32])).is_some());
        let full = blobs.put(Digest([4; 32]), Bytes::from_static(b"x"), (), |_| true);
        assert_eq!(full, Err(NoRoom { size: 1, used: 2, limit: 2 }));
    }
}
