//! The bytes of the KV pool: one memory file, mapped once, shared with nobody who could write it.
//!
//! The mapping is writable here; afterwards the file is sealed (`SHRINK | GROW | FUTURE_WRITE |
//! SEAL`), so that a peer who is given the descriptor can map it read-only and in no other way.
//! Pages are touched lazily: a pool costs what has been used of it.
//!
//! This is one of the files where `unsafe` is allowed. The contract that makes it sound lies with
//! the block accounting in `domain`: a range is written by exactly one owner (the engine's pass or
//! one landing transfer), and is read only after its writer has finished. Blocks of a broken
//! transfer are reused only after proof that no write can still arrive.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::domain::ids::BlockId;
use crate::ports::KvGeometry;

/// Key or value part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Keys.
    K,
    /// Values.
    V,
}

/// The memory of a KV pool of `blocks` blocks of `geometry`.
#[derive(Debug)]
pub struct KvMemory {
    map: MmapRaw,
    file: File,
    geometry: KvGeometry,
    blocks: usize,
}

impl KvMemory {
    /// Creates the memory file, maps it writable, then seals it.
    ///
    /// # Errors
    /// What `memfd_create`, `ftruncate`, `mmap` or `fcntl` answer.
    pub fn new(geometry: KvGeometry, blocks: usize) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create("armature-kv", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = File::from(fd);
        file.set_len((geometry.block_bytes() * blocks) as u64)?;
        let map = MmapRaw::map_raw(&file)?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        )?;
        Ok(Self { map, file, geometry, blocks })
    }

    /// Shape of the pool's blocks.
    pub fn geometry(&self) -> &KvGeometry {
        &self.geometry
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The sealed descriptor, for a peer that may read.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Byte offset of a block in the mapping.
    pub fn block_offset(&self, block: BlockId) -> usize {
        block.index() * self.geometry.block_bytes()
    }

    fn checked(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.map.len()), "outside the KV pool");
        // SAFETY: in bounds by the assertion.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }

    /// Bytes `range` of a block, for reading.
    ///
    /// # Panics
    /// When the range is outside the block.
    pub fn bytes(&self, block: BlockId, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.geometry.block_bytes());
        let ptr = self.checked(self.block_offset(block) + range.start, range.len());
        // SAFETY: in bounds; no writer by the contract of the block accounting.
        unsafe { std::slice::from_raw_parts(ptr, range.len()) }
    }

    /// Bytes `range` of a block, for its one writer.
    ///
    /// # Panics
    /// When the range is outside the block.
    #[allow(clippy::mut_from_ref)]
    pub fn bytes_mut(&self, block: BlockId, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.geometry.block_bytes());
        let ptr = self.checked(self.block_offset(block) + range.start, range.len());
        // SAFETY: in bounds; the caller is the range's only user by the contract of the block accounting.
        unsafe { std::slice::from_raw_parts_mut(ptr, range.len()) }
    }

    fn part_range(&self, layer: usize, part: Part) -> Range<usize> {
        let part_bytes = self.geometry.layer_bytes() / 2;
        let start = layer * self.geometry.layer_bytes() + if part == Part::V { part_bytes } else { 0 };
        start..start + part_bytes
    }

    /// K or V of one layer of one block: `block_size * row` values, token after token.
    pub fn part(&self, block: BlockId, layer: usize, part: Part) -> &[f32] {
        let bytes = self.bytes(block, self.part_range(layer, part));
        // SAFETY: the mapping is page-aligned and every offset is a multiple of 4; any bits are an f32.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<f32>()) }
    }

    /// K or V of one token in one layer of a block: `row` values, for the block's one writer.
    #[allow(clippy::mut_from_ref)]
    pub fn row_mut(&self, block: BlockId, layer: usize, part: Part, slot: usize) -> &mut [f32] {
        assert!(slot < self.geometry.block_size);
        let row = self.geometry.row() * size_of::<f32>();
        let start = self.part_range(layer, part).start + slot * row;
        let bytes = self.bytes_mut(block, start..start + row);
        // SAFETY: as in `part`.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<f32>()) }
    }

    /// Copies the first `tokens` slots of `from` into `to`, all layers: a partial block that gets a
    /// second writer.
    pub fn copy_slots(&self, from: BlockId, to: BlockId, tokens: usize) {
        let row = self.geometry.row() * size_of::<f32>();
        for layer in 0..self.geometry.layers {
            for part in [Part::K, Part::V] {
                let start = self.part_range(layer, part).start;
                let range = start..start + tokens * row;
                self.bytes_mut(to, range.clone()).copy_from_slice(self.bytes(from, range));
            }
        }
    }

    /// Fills a block with NaN bit patterns, so that whoever reads it before it is written again fails loudly.
    pub fn poison(&self, block: BlockId) {
        self.bytes_mut(block, 0..self.geometry.block_bytes()).fill(0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: KvGeometry = KvGeometry { layers: 2, kv_heads: 2, head_dim: 4, block_size: 4 };

    #[test]
    fn rows_parts_and_bytes_address_the_same_memory() {
        let kv = KvMemory::new(GEOMETRY, 3).unwrap();
        kv.row_mut(BlockId(2), 1, Part::V, 3).fill(7.0);
        let part = kv.part(BlockId(2), 1, Part::V);
        assert_eq!(part.len(), 4 * 8);
        assert!(part[..24].iter().all(|v| *v == 0.0) && part[24..].iter().all(|v| *v == 7.0));
        let tail = kv.bytes(BlockId(2), GEOMETRY.block_bytes() - 4..GEOMETRY.block_bytes());
        assert_eq!(tail, 7.0f32.to_le_bytes());
    }

    #[test]
    fn copy_slots_copies_only_the_named_slots() {
        let kv = KvMemory::new(GEOMETRY, 2).unwrap();
        for slot in 0..4 {
            kv.row_mut(BlockId(0), 0, Part::K, slot).fill(1.0 + slot as f32);
        }
        kv.copy_slots(BlockId(0), BlockId(1), 2);
        let copied = kv.part(BlockId(1), 0, Part::K);
        assert_eq!((copied[0], copied[8], copied[16]), (1.0, 2.0, 0.0));
    }

    #[test]
    fn the_descriptor_is_sealed_against_writers() {
        let kv = KvMemory::new(GEOMETRY, 1).unwrap();
        let file = File::from(kv.descriptor().try_clone_to_owned().unwrap());
        assert!(file.set_len(1).is_err(), "neither shrinks nor grows");
        assert!(MmapRaw::map_raw(&file).is_err(), "no later writable mapping");
    }
}
