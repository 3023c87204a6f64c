//! The address under which others reach who listens on every interface.
//!
//! A container or a machine does not know its own address when its configuration is written, so a
//! service that listens on a wildcard asks the system: which address of mine would reach a peer?
//! No packet is sent for that.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::UdpSocket;

use crate::address::Address;

/// Stands for "elsewhere" when no peer has an address yet: TEST-NET-1 (RFC 5737), so the interface
/// of the default route answers.
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// The host to register instead of a wildcard: what reaches the first of `peers` (the discovery
/// endpoints) that has an address, else what the default route uses. `None` when `bound` is no
/// wildcard and so can be registered itself, or when this machine has no way out.
pub async fn host(bound: &Address, peers: &[Address]) -> Option<String> {
    if !bound.is_wildcard() {
        return None;
    }
    for peer in peers {
        let Address::Tcp { host, port } = peer else { continue };
        let Ok(found) = tokio::net::lookup_host((host.as_str(), *port)).await else { continue };
        for address in found {
            if let Some(own) = towards(address).await {
                return Some(own.to_string());
            }
        }
    }
    towards(ELSEWHERE).await.map(|own| own.to_string())
}

/// What to register for `bound`: `configured` if it is, else [`host`] with the bound port, else the
/// bound address as it is, with a warning when others cannot dial it.
pub async fn advertised(bound: &Address, configured: Option<&Address>, peers: &[Address]) -> Address {
    if let Some(configured) = configured {
        return configured.clone();
    }
    let address = match host(bound, peers).await {
        Some(host) => bound.with_host(host),
        None => bound.clone(),
    };
    if address.is_wildcard() {
        tracing::warn!(%address, "registering an address that others cannot dial: set `advertise` (of a worker, `advertise_host`)");
    }
    address
}

/// The local address of a datagram socket that would send to `peer`.
async fn towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(peer).await.ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wildcard_becomes_what_reaches_the_peers() {
        let (wildcard, peers) = (Address::tcp("0.0.0.0", 7500), [Address::tcp("127.0.0.1", 7100)]);
        assert_eq!(advertised(&wildcard, None, &peers).await, Address::tcp("127.0.0.1", 7500));
        assert_eq!(host(&Address::tcp("10.0.0.1", 7500), &peers).await, None);
    }

    #[tokio::test]
    async fn what_is_configured_or_bound_to_one_address_stays() {
        let configured = Address::tcp("router.example", 7200);
        let bound = Address::tcp("0.0.0.0", 7200);
        assert_eq!(advertised(&bound, Some(&configured), &[]).await, configured);
        let one = Address::tcp("10.1.2.3", 7200);
        assert_eq!(advertised(&one, None, &[Address::mem("discovery")]).await, one);
    }

    #[tokio::test]
    async fn peers_without_an_address_are_passed_over() {
        let peers = [
            Address::mem("discovery"),
            Address::tcp("no-such-host.invalid", 7100),
            Address::tcp("127.0.0.1", 7100),
        ];
        assert_eq!(host(&Address::tcp("0.0.0.0", 1), &peers).await.as_deref(), Some("127.0.0.1"));
    }
}
