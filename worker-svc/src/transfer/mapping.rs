//! Another process's pool, mapped read-only.
//!
//! The file where this module's `unsafe` is: copying out of memory that its owner may change. The owner
//! keeps the blocks it has named unchanged until it has confirmed our Ack; a copy made without that
//! confirmation may be torn, and is thrown away unread. What the copy can never do is fault: the seals,
//! checked before mapping, keep the file from shrinking, and every range is checked against it.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::OwnedFd;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::SealFlags;

use super::ids::PeerBlock;
use super::reason::ShmRefusal;
use super::segments::Segment;
use crate::ports::KvGeometry;

/// Which memory file: no two that are alive have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(crate) fn of(fd: &OwnedFd) -> Result<Self, ShmRefusal> {
        let stat = rustix::fs::fstat(fd).map_err(|_| ShmRefusal::NoDescriptor)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A peer's pool.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
    block_bytes: usize,
    blocks: usize,
}

impl Mapping {
    /// Checks the seals and the size of the file and maps it `MAP_SHARED`, `PROT_READ`.
    pub(crate) fn open(fd: OwnedFd, geometry: &KvGeometry, blocks: usize) -> Result<Self, ShmRefusal> {
        let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| ShmRefusal::NotSealed)?;
        if !seals.contains(needed) {
            return Err(ShmRefusal::NotSealed);
        }
        let stat = rustix::fs::fstat(&fd).map_err(|_| ShmRefusal::NoDescriptor)?;
        let expected = geometry.block_bytes().checked_mul(blocks).ok_or(ShmRefusal::OtherShape)?;
        if u64::try_from(stat.st_size) != Ok(expected as u64) {
            return Err(ShmRefusal::OtherShape);
        }
        let file = File::from(fd);
        let map = MmapOptions::new().map_raw_read_only(&file).map_err(|_| ShmRefusal::CannotMap)?;
        Ok(Self { map, block_bytes: geometry.block_bytes(), blocks })
    }

    /// Blocks of the pool.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Copies one run of bytes of one block.
    ///
    /// # Panics
    /// When the run is outside the block or the pool, or `destination` has another length.
    pub(crate) fn copy(&self, from: &Segment<PeerBlock>, destination: &mut [u8]) {
        let block = from.block.0 as usize;
        assert!(block < self.blocks, "block outside the peer's pool");
        assert!(from.bytes.start <= from.bytes.end && from.bytes.end <= self.block_bytes);
        assert_eq!(from.bytes.len(), destination.len());
        let offset = block * self.block_bytes + from.bytes.start;
        // SAFETY: in bounds by the assertions and by the size checked in `open`, which the seals keep;
        // `destination` is our own memory, so the two do not overlap. The source may change under the
        // copy: it is read through a raw pointer, never as a reference, and any bytes are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.map.as_ptr().add(offset),
                destination.as_mut_ptr(),
                destination.len(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::domain::ids::BlockId;
    use crate::kv_memory::KvMemory;

    const GEOMETRY: KvGeometry = KvGeometry { layers: 2, kv_heads: 1, head_dim: 2, block_size: 4 };

    fn descriptor(kv: &KvMemory) -> OwnedFd {
        kv.descriptor().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_mapping_sees_what_the_owner_writes_later() {
        let kv = KvMemory::new(GEOMETRY, 3).unwrap();
        let mapping = Mapping::open(descriptor(&kv), &GEOMETRY, 3).unwrap();
        kv.bytes_mut(BlockId(2), 4..8).copy_from_slice(&[1, 2, 3, 4]);
        let mut copy = [0; 4];
        mapping.copy(&Segment { block: PeerBlock(2), bytes: 4..8 }, &mut copy);
        assert_eq!(copy, [1, 2, 3, 4]);
    }

    #[test]
    fn unsealed_and_misshapen_files_are_refused() {
        let kv = KvMemory::new(GEOMETRY, 3).unwrap();
        assert_eq!(Mapping::open(descriptor(&kv), &GEOMETRY, 4).unwrap_err(), ShmRefusal::OtherShape);
        assert_eq!(
            Mapping::open(descriptor(&kv), &GEOMETRY, usize::MAX).unwrap_err(),
            ShmRefusal::OtherShape
        );
        let length = GEOMETRY.block_bytes() as u64;
        let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::SEAL];
        for lacking in all {
            let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            rustix::fs::ftruncate(&fd, length).unwrap();
            for seal in all.into_iter().filter(|seal| *seal != lacking) {
                rustix::fs::fcntl_add_seals(&fd, seal).unwrap();
            }
            assert_eq!(Mapping::open(fd, &GEOMETRY, 1).unwrap_err(), ShmRefusal::NotSealed);
        }
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(Mapping::open(file, &GEOMETRY, 1).unwrap_err(), ShmRefusal::NotSealed);
    }
}
