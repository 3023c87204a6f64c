//! A connection that has to begin in time.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::network::Connection;

/// Bytes that every HTTP/2 client sends first, unasked (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Fails to read when the preface has not arrived within a limit; afterwards it is the connection as it is.
#[derive(Debug)]
pub(crate) struct Prefaced {
    connection: Connection,
    missing: usize,
    /// Until the preface is here.
    limit: Option<Pin<Box<Sleep>>>,
}

impl Prefaced {
    /// Gives the preface `limit` from now.
    pub(crate) fn new(connection: Connection, limit: Duration) -> Self {
        Self { connection, missing: PREFACE_BYTES, limit: Some(Box::pin(sleep(limit))) }
    }
}

impl AsyncRead for Prefaced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(limit) = &mut self.limit
            && limit.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.connection).poll_read(cx, buffer))?;
        self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
        if self.missing == 0 {
            self.limit = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefaced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
