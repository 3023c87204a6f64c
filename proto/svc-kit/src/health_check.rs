//! `--probe`: a service asks its own running process whether it is ready. Images have no shell and
//! no HTTP client, so this is their health check.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::address::Address;
use crate::network::Network;

/// Longest wait for the answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Why a service does not count as ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// Its configuration has no admin server that could be asked.
    #[error("configuration key `admin` is unset: without an admin server nobody can say whether it is ready")]
    NoAdmin,
    /// It listens on a port that only the running process knows.
    #[error("configuration key `admin` is {0}: name a port, a picked one cannot be found")]
    NoPort(Address),
    /// Nothing answers there.
    #[error("{address} does not answer: {problem}")]
    Unreachable {
        /// Who was asked.
        address: Address,
        /// What came instead.
        problem: String,
    },
    /// It runs and says no.
    #[error("{address} answers {status}: not ready yet")]
    Refused {
        /// Who was asked.
        address: Address,
        /// Of `/readyz`.
        status: StatusCode,
    },
}

/// Asks `/readyz` of the process that listens on `admin`, a key of this very configuration.
///
/// # Errors
/// [`NotReady`], for a person who runs the probe by hand.
pub async fn ready(network: &Network, admin: Option<&Address>) -> Result<(), NotReady> {
    let address = dialled(admin.ok_or(NotReady::NoAdmin)?)?;
    let unreachable = |problem: String| NotReady::Unreachable { address: address.clone(), problem };
    let answer = timeout(ANSWER, ask(network, &address)).await;
    let status = answer.map_err(|_| unreachable(format!("no answer in {} s", ANSWER.as_secs())))?;
    let status = status.map_err(|error| unreachable(error.to_string()))?;
    if status.is_success() { Ok(()) } else { Err(NotReady::Refused { address, status }) }
}

/// The address behind a listening one: a wildcard is reached over loopback.
fn dialled(admin: &Address) -> Result<Address, NotReady> {
    match admin {
        Address::Tcp { port: 0, .. } => Err(NotReady::NoPort(admin.clone())),
        Address::Tcp { host, .. } if host == "::" => Ok(admin.with_host("::1")),
        _ if admin.is_wildcard() => Ok(admin.with_host("127.0.0.1")),
        _ => Ok(admin.clone()),
    }
}

async fn ask(
    network: &Network,
    address: &Address,
) -> Result<StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let connection = TokioIo::new(network.connect(address).await?);
    let (mut sender, connection) = http1::handshake(connection).await?;
    let request =
        Request::get("/readyz").header(header::HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    // The connection is driven here until the head has come; nothing of it is left running.
    tokio::select! {
        response = sender.send_request(request) => Ok(response?.status()),
        ended = connection => Err(ended.map_or_else(Into::into, |()| "the connection was closed".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_dialled_over_loopback_and_a_picked_port_not_at_all() {
        let at = |text: &str| dialled(&text.parse().unwrap()).map(|address| address.to_string());
        assert_eq!(at("0.0.0.0:7110").unwrap(), "127.0.0.1:7110");
        assert_eq!(at("[::]:7110").unwrap(), "[::1]:7110");
        assert_eq!(at("10.0.0.1:7110").unwrap(), "10.0.0.1:7110");
        assert!(at("127.0.0.1:0").unwrap_err().to_string().contains("`admin`"));
    }
}
