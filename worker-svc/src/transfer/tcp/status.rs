//! The one byte that D sends: how the transfer ended for it.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::transfer::reason::{Failure, PeerFailure};

/// How long D keeps a finished connection for P to read the status: closing it earlier, with unread
/// frames in it, would reset it and destroy the status.
const LINGER: Duration = Duration::from_secs(1);

/// What the byte says.
pub(crate) type Status = Result<(), PeerFailure>;

fn encode(end: Result<(), Failure>) -> u8 {
    match end {
        Ok(()) => 0,
        Err(Failure::Aborted | Failure::Closed) => 1,
        Err(Failure::Deadline) => 2,
        Err(Failure::Violation(_)) => 3,
        Err(_) => 4,
    }
}

fn decode(byte: u8) -> Status {
    match byte {
        0 => Ok(()),
        1 => Err(PeerFailure::Aborted),
        2 => Err(PeerFailure::Deadline),
        3 => Err(PeerFailure::Violation),
        _ => Err(PeerFailure::Other),
    }
}

/// Waits for the status; `None` when the connection ends without one. Cancel-safe.
pub(crate) async fn receive(stream: &TcpStream) -> Option<Status> {
    let mut byte = [0];
    loop {
        stream.readable().await.ok()?;
        match stream.try_read(&mut byte) {
            Ok(0) => return None,
            Ok(_) => return Some(decode(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// Sends the status, then discards what P still sends until it closes or a moment has passed.
pub(crate) async fn farewell(mut stream: TcpStream, end: Result<(), Failure>) {
    let parting = async {
        stream.write_all(&[encode(end)]).await?;
        stream.shutdown().await?;
        let mut discarded = vec![0; 64 * 1024];
        loop {
            stream.readable().await?;
            match stream.try_read(&mut discarded) {
                Ok(0) => return io::Result::Ok(()),
                Ok(_) => tokio::task::consume_budget().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    if let Ok(Err(error)) = timeout(LINGER, parting).await {
        tracing::debug!(%error, "kv data connection ended before its status was taken");
    }
}
