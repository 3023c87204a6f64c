//! Moves pieces between a socket and the pool without a copy in between.
//!
//! Each system call is bounded in bytes and slices, and the task yields by tokio's budget, so that
//! the runtime's thread is never held for long. Nothing is written after the future is dropped.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use tokio::net::TcpStream;
use tokio::task::consume_budget;

use crate::domain::ids::BlockId;
use crate::kv_memory::KvMemory;
use crate::transfer::segments::Segment;

/// Bytes of one system call: some 100 us of copying.
const CALL_BYTES: usize = 1 << 20;
/// Slices of one system call; the kernel takes up to 1024.
const CALL_SLICES: usize = 64;

/// The segments that are not through yet.
struct Rest<'a> {
    segments: &'a [Segment<BlockId>],
    /// Bytes of the first segment that are through.
    offset: usize,
}

impl Rest<'_> {
    /// What one call takes.
    fn batch(&self) -> impl Iterator<Item = Segment<BlockId>> + '_ {
        let mut room = CALL_BYTES;
        self.segments.iter().take(CALL_SLICES).enumerate().map_while(move |(nth, segment)| {
            let start = segment.bytes.start + if nth == 0 { self.offset } else { 0 };
            let len = (segment.bytes.end - start).min(room);
            room -= len;
            (len > 0).then(|| Segment { block: segment.block, bytes: start..start + len })
        })
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some((first, rest)) = self.segments.split_first() {
            let left = first.bytes.len() - self.offset;
            if bytes < left {
                self.offset += bytes;
                return;
            }
            bytes -= left;
            self.offset = 0;
            self.segments = rest;
        }
    }
}

/// Writes `header` and then the bytes of `segments`.
///
/// # Errors
/// What the socket answers.
pub(crate) async fn write(
    stream: &TcpStream,
    mut header: &[u8],
    kv: &KvMemory,
    segments: &[Segment<BlockId>],
) -> io::Result<()> {
    let mut rest = Rest { segments, offset: 0 };
    while !header.is_empty() || !rest.segments.is_empty() {
        stream.writable().await?;
        let written = {
            let mut slices = Vec::with_capacity(CALL_SLICES + 1);
            slices.push(IoSlice::new(header));
            slices.extend(rest.batch().map(|part| IoSlice::new(kv.bytes(part.block, part.bytes))));
            stream.try_write_vectored(&slices)
        };
        match written {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                let of_header = bytes.min(header.len());
                header = &header[of_header..];
                rest.advance(bytes - of_header);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        consume_budget().await;
    }
    Ok(())
}

/// Fills `segments` from the socket.
///
/// # Errors
/// `UnexpectedEof` when the peer closes first, or what the socket answers.
pub(crate) async fn read(stream: &TcpStream, kv: &KvMemory, segments: &[Segment<BlockId>]) -> io::Result<()> {
    let mut rest = Rest { segments, offset: 0 };
    while !rest.segments.is_empty() {
        stream.readable().await?;
        let read = {
            let mut slices: Vec<IoSliceMut<'_>> = Vec::with_capacity(CALL_SLICES);
            slices.extend(rest.batch().map(|part| IoSliceMut::new(kv.bytes_mut(part.block, part.bytes))));
            stream.try_read_vectored(&mut slices)
        };
        match read {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => rest.advance(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        consume_budget().await;
    }
    Ok(())
}
