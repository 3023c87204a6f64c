//! Puts the chunks of a snapshot together.

use armature_contracts::kv_hash::set_digest;

use super::wire::{Doubt, Mark};
use crate::domain::units::{SequenceHash, Tier};

/// One chunk of the whole set of a rank.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    /// Number of the batch after which the set was so.
    pub batch: u64,
    /// From 0.
    pub chunk: u32,
    /// How many there are.
    pub chunks: u32,
    /// Part of the set.
    pub blocks: Vec<(Tier, Vec<SequenceHash>)>,
    /// Size of the whole set.
    pub count: u64,
    /// Digest of the whole set.
    pub digest: u64,
}

/// The whole set of a rank, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Where in the stream of batches it stands.
    pub mark: Mark,
    /// The set.
    pub blocks: Vec<(Tier, Vec<SequenceHash>)>,
}

/// A snapshot that is not yet complete.
#[derive(Debug)]
pub struct Assembly {
    max_blocks: u64,
    next: u32,
    snapshot: Snapshot,
}

impl Assembly {
    /// For a snapshot of at most `max_blocks`.
    pub fn new(max_blocks: u64) -> Self {
        Self { max_blocks, next: 0, snapshot: Snapshot::default() }
    }

    /// Adds a chunk. Answers the snapshot with the last one, when count and digest are right. Chunk 0 starts anew.
    pub fn push(&mut self, chunk: Chunk) -> Result<Option<Snapshot>, Doubt> {
        let mark = Mark { batch: chunk.batch, count: chunk.count, digest: chunk.digest };
        if chunk.chunk == 0 {
            self.snapshot = Snapshot { mark, blocks: Vec::new() };
        } else if chunk.chunk != self.next || mark != self.snapshot.mark {
            return Err(self.failed(Doubt::SnapshotBroken));
        }
        if chunk.count > self.max_blocks {
            return Err(self.failed(Doubt::SnapshotTooLarge { count: chunk.count, limit: self.max_blocks }));
        }
        self.next = chunk.chunk + 1;
        self.snapshot.blocks.extend(chunk.blocks);
        let held = self.snapshot.blocks.iter().map(|(_, hashes)| hashes.len() as u64).sum::<u64>();
        if held > mark.count {
            return Err(self.failed(Doubt::Count { expected: mark.count, got: held }));
        }
        if self.next < chunk.chunks {
            return Ok(None);
        }
        if held != mark.count {
            return Err(self.failed(Doubt::Count { expected: mark.count, got: held }));
        }
        let snapshot = std::mem::take(&mut self.snapshot);
        self.next = 0;
        let pairs =
            snapshot.blocks.iter().flat_map(|(tier, hashes)| hashes.iter().map(|hash| (hash.0, *tier as u8)));
        if set_digest(pairs) != mark.digest {
            return Err(Doubt::Digest);
        }
        Ok(Some(snapshot))
    }

    fn failed(&mut self, doubt: Doubt) -> Doubt {
        *self = Self::new(self.max_blocks);
        doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(at: u32, chunks: u32, hashes: &[u64], digest: u64) -> Chunk {
        let blocks = vec![(Tier::Device, hashes.iter().copied().map(SequenceHash).collect())];
        Chunk { batch: 7, chunk: at, chunks, blocks, count: 3, digest }
    }

    #[test]
    fn chunks_in_order_with_the_right_digest_make_a_snapshot() {
        let digest = set_digest([(1, 1), (2, 1), (3, 1)]);
        let mut assembly = Assembly::new(10);
        assert_eq!(assembly.push(chunk(0, 2, &[1, 2], digest)), Ok(None));
        let whole = assembly.push(chunk(1, 2, &[3], digest)).unwrap().unwrap();
        assert_eq!(whole.mark, Mark { batch: 7, count: 3, digest });

        assert_eq!(assembly.push(chunk(1, 2, &[3], digest)), Err(Doubt::SnapshotBroken));
        assert_eq!(assembly.push(chunk(0, 2, &[1, 2], digest)), Ok(None));
        assert_eq!(assembly.push(chunk(1, 2, &[4], digest)), Err(Doubt::Digest));
        assert_eq!(assembly.push(chunk(0, 1, &[1, 2], digest)), Err(Doubt::Count { expected: 3, got: 2 }));
        assert_eq!(
            assembly.push(chunk(0, 2, &[1, 2, 3, 4], digest)),
            Err(Doubt::Count { expected: 3, got: 4 })
        );
        let too_large = Doubt::SnapshotTooLarge { count: 3, limit: 2 };
        assert_eq!(Assembly::new(2).push(chunk(0, 1, &[1, 2, 3], digest)), Err(too_large));
    }
}
