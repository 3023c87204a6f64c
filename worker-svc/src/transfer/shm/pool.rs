//! The message that carries a pool's descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;

use crate::kv_memory::KvMemory;
use crate::ports::KvGeometry;
use crate::transfer::ids::Incarnation;
use crate::transfer::reason::ShmRefusal;

const MESSAGE: usize = 24;

/// Where the pool of an incarnation is handed out.
pub(crate) fn socket_path(directory: &Path, incarnation: Incarnation) -> PathBuf {
    directory.join(format!("{incarnation}.sock"))
}

/// What a pool says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolShape {
    pub(crate) geometry: KvGeometry,
    pub(crate) blocks: usize,
}

impl PoolShape {
    fn encode(&self) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        let KvGeometry { layers, kv_heads, head_dim, block_size } = self.geometry;
        for (slot, field) in message.chunks_exact_mut(4).zip([layers, kv_heads, head_dim, block_size]) {
            slot.copy_from_slice(&(field as u32).to_le_bytes());
        }
        message[16..].copy_from_slice(&(self.blocks as u64).to_le_bytes());
        message
    }

    /// Equal to what `ours` with as many blocks would send, or `None`.
    fn decode(message: &[u8; MESSAGE], ours: &KvGeometry) -> Option<Self> {
        let blocks = u64::from_le_bytes(message[16..].try_into().ok()?);
        let shape = Self { geometry: *ours, blocks: usize::try_from(blocks).ok()? };
        (shape.encode() == *message).then_some(shape)
    }
}

/// Sends the pool's shape and descriptor.
pub(crate) async fn send(stream: &UnixStream, kv: &KvMemory) -> io::Result<()> {
    let message = PoolShape { geometry: *kv.geometry(), blocks: kv.blocks() }.encode();
    let descriptors = [kv.descriptor()];
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
            debug_assert!(fits);
            let iov = [IoSlice::new(&message)];
            Ok(rustix::net::sendmsg(stream.as_fd(), &iov, &mut control, SendFlags::NOSIGNAL)?)
        })
        .await?;
    // The first bytes on an empty socket buffer: the kernel takes all 24 or none.
    if sent == MESSAGE { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a pool's shape and descriptor; the shape must be ours but for the number of blocks.
pub(crate) async fn receive(
    stream: &mut UnixStream,
    ours: &KvGeometry,
) -> Result<(PoolShape, OwnedFd), ShmRefusal> {
    let mut message = [0; MESSAGE];
    let (filled, mut descriptors) = stream
        .async_io(Interest::READABLE, || receive_once(stream, &mut message))
        .await
        .map_err(|_| ShmRefusal::NoDescriptor)?;
    let (Some(descriptor), true) = (descriptors.pop(), descriptors.is_empty()) else {
        return Err(ShmRefusal::NoDescriptor);
    };
    stream.read_exact(&mut message[filled..]).await.map_err(|_| ShmRefusal::NoDescriptor)?;
    let shape = PoolShape::decode(&message, ours).ok_or(ShmRefusal::OtherShape)?;
    Ok((shape, descriptor))
}

fn receive_once(stream: &UnixStream, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    // Room for two, so that one too many is seen; the kernel closes what does not fit.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(message)];
    let received = rustix::net::recvmsg(stream.as_fd(), &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    Ok((received.bytes, descriptors))
}
