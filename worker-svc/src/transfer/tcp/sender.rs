//! P's end of a data connection: made when the first window is granted.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::frame::Frame;
use super::{status, vectored};
use crate::transfer::landing::ledger::Piece;
use crate::transfer::proof::{self, Channel, ProofError};
use crate::transfer::reason::Failure;
use crate::transfer::segments::{piece_bytes, segments};
use crate::transfer::source::core::{Reader, SourceCore};

/// How long to look for D's status after the connection has failed under our writes.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Where and how to send.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    /// `host:port` of D's listener.
    pub(crate) address: String,
    /// For connecting and for the proof, each.
    pub(crate) handshake_timeout: Duration,
    /// Largest payload of a frame.
    pub(crate) max_frame_bytes: u64,
}

/// Sends what is ready and granted until the transfer is over.
pub(crate) async fn run(core: Arc<SourceCore>, destination: Destination, reader: Reader) {
    let sent = tokio::select! {
        biased;
        () = core.ended.cancelled() => Ok(()),
        sent = send(&core, &destination) => sent,
    };
    drop(reader);
    if let Err(failure) = sent {
        core.fail(failure);
    }
}

async fn send(core: &SourceCore, destination: &Destination) -> Result<(), Failure> {
    let stream = connect(core, destination).await?;
    let status = tokio::select! {
        status = status::receive(&stream) => status,
        broken = send_frames(core, destination, &stream) => {
            // D may have said why before it closed.
            match timeout(LAST_WORD, status::receive(&stream)).await {
                Ok(Some(status)) => Some(status),
                _ => return Err(broken),
            }
        }
    };
    match status {
        Some(Ok(())) => core.landed_at_peer(),
        Some(Err(failure)) => Err(Failure::Peer(failure)),
        None => Err(Failure::ConnectionLost),
    }
}

async fn connect(core: &SourceCore, destination: &Destination) -> Result<TcpStream, Failure> {
    let connecting = timeout(destination.handshake_timeout, TcpStream::connect(&destination.address));
    let timed_out = Failure::Unreachable(std::io::ErrorKind::TimedOut);
    let unreachable = |error: std::io::Error| Failure::Unreachable(error.kind());
    let mut stream = connecting.await.map_err(|_| timed_out)?.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let nonce = rand::random();
    let proving = proof::dial(&mut stream, Channel::Frames, core.transfer, &core.secret, nonce);
    match timeout(destination.handshake_timeout, proving).await {
        Err(_) => Err(timed_out),
        Ok(Err(ProofError::Io(error))) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            Err(unreachable(error))
        }
        Ok(Err(_)) => Err(Failure::Unproven),
        Ok(Ok(())) => Ok(stream),
    }
}

/// Never returns but with what broke.
async fn send_frames(core: &SourceCore, destination: &Destination, stream: &TcpStream) -> Failure {
    let geometry = core.kv.geometry();
    loop {
        let out = core.take(destination.max_frame_bytes).await;
        let (layers, extent) = (out.ready.layers, &out.ready.extent);
        let piece = Piece { window: out.window, layers, tokens: extent.tokens() };
        let bytes = piece_bytes(geometry, layers.len(), extent.tokens().len());
        let header = Frame { transfer: core.transfer, piece, bytes }.encode();
        let parts = segments(geometry, layers, extent);
        if let Err(error) = vectored::write(stream, &header, &core.kv, &parts).await {
            return match error.kind() {
                std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => {
                    Failure::ConnectionLost
                }
                kind => Failure::Io(kind),
            };
        }
        core.moved(out.cells());
    }
}
