//! D's end of a data connection whose peer has proven the secret.

use std::io::ErrorKind;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::frame::{Frame, HEADER};
use super::{status, vectored};
use crate::transfer::landing::core::{LandingCore, Writer};
use crate::transfer::reason::{Failure, Violation};
use crate::transfer::segments::{piece_bytes, segments};

/// Reads frames into the pool until the transfer is over, then tells the peer how it ended.
pub(crate) async fn run(core: Arc<LandingCore>, mut stream: TcpStream, writer: Writer) {
    let received = tokio::select! {
        biased;
        () = core.ended.cancelled() => Ok(()),
        received = receive(&core, &mut stream) => received,
    };
    if let Err(failure) = received {
        core.fail(failure);
    }
    drop(writer);
    let end = core.ledger().end().unwrap_or(Err(Failure::Closed));
    status::farewell(stream, end).await;
}

async fn receive(core: &LandingCore, stream: &mut TcpStream) -> Result<(), Failure> {
    while core.ledger().end().is_none() {
        let frame = Frame::decode(&header(stream).await?)?;
        if frame.transfer != core.transfer {
            return Err(Violation::OtherTransfer.into());
        }
        let geometry = core.kv.geometry();
        let expected = piece_bytes(geometry, frame.piece.layers.len(), frame.piece.tokens.len());
        if frame.bytes != expected {
            return Err(Violation::WrongLength { expected, found: frame.bytes }.into());
        }
        let destination = core.claim(frame.piece)?;
        let parts = segments(geometry, frame.piece.layers, &destination);
        vectored::read(stream, &core.kv, &parts).await.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Failure::Truncated,
            kind => Failure::Io(kind),
        })?;
        core.landed(frame.piece);
    }
    Ok(())
}

async fn header(stream: &mut TcpStream) -> Result<[u8; HEADER], Failure> {
    let mut header = [0; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        match stream.read(&mut header[filled..]).await {
            Ok(0) if filled == 0 => return Err(Failure::ConnectionLost),
            Ok(0) => return Err(Failure::Truncated),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(Failure::ConnectionLost),
            Err(error) => return Err(Failure::Io(error.kind())),
        }
    }
    Ok(header)
}
