//! Connects to a name that has several addresses.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;

/// How long an address may take before the next one is tried beside it: a quarter of a second hides one that is dead from the caller.
const NEXT: Duration = Duration::from_millis(250);

/// Connects to one of the addresses of a name; each call begins at any of them, so that connections spread.
pub(crate) async fn by_name(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut addresses: VecDeque<SocketAddr> = lookup_host((host, port)).await?.collect();
    let first = rand::random_range(0..addresses.len().max(1));
    addresses.rotate_left(first);
    any(addresses).await
}

/// Tries each in turn, the next one when one fails or takes long; the first that answers is used.
async fn any(mut addresses: VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = FuturesUnordered::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        match addresses.pop_front() {
            Some(address) => attempts.push(TcpStream::connect(address)),
            None if attempts.is_empty() => return Err(failed),
            None => {}
        }
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            },
            () = sleep(NEXT), if !addresses.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn every_address_is_tried() {
        let (_alive, alive) = listener().await;
        // Nobody listens there any more.
        let dead = listener().await.1;
        for order in [[dead, dead, alive], [alive, dead, dead], [dead, alive, dead]] {
            assert_eq!(any(order.into()).await.unwrap().peer_addr().unwrap(), alive);
        }
        assert_eq!(any([dead, dead].into()).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(any(VecDeque::new()).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn one_that_does_not_answer_holds_up_nobody() {
        // Loopback answers at once or never: the queue of this one is full and nobody accepts.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let deaf = socket.listen(1).unwrap();
        let silent = deaf.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(Ok(waiting)) = tokio::time::timeout(NEXT, TcpStream::connect(silent)).await {
            queue.push(waiting);
        }
        let (_alive, alive) = listener().await;
        assert_eq!(any([silent, alive].into()).await.unwrap().peer_addr().unwrap(), alive);
    }
}
