//! Where a service listens: `mem:NAME` inside the process, or a TCP host and port.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The address of a service, parsed from text.
///
/// Text forms: `mem:NAME`, `host:port`, `[v6]:port`, and either of the last two after `http://`.
/// Port 0 asks for a free port; [`crate::network::Listener::address`] tells which one it became.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An in-process listener, known by name within one [`crate::network::Network`].
    Mem(String),
    /// A TCP listener.
    Tcp {
        /// Host name or IP address; an IPv6 address is kept without its brackets.
        host: String,
        /// TCP port; 0 asks for a free one.
        port: u16,
    },
}

/// Text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address: expected mem:NAME, host:port or http://host:port")]
pub struct AddressError(pub String);

impl Address {
    /// An in-process address.
    pub fn mem(name: impl Into<String>) -> Self {
        Self::Mem(name.into())
    }

    /// A TCP address.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp { host: host.into(), port }
    }

    /// The same port on another host: what to publish when bound to a wildcard address.
    #[must_use]
    pub fn with_host(&self, host: impl Into<String>) -> Self {
        match self {
            Self::Mem(_) => self.clone(),
            Self::Tcp { port, .. } => Self::tcp(host, *port),
        }
    }

    /// The TCP port, if there is one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Mem(_) => None,
            Self::Tcp { port, .. } => Some(*port),
        }
    }

    /// True for an address that means every interface and so cannot be dialled from elsewhere.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Self::Tcp { host, .. } if host == "0.0.0.0" || host == "::")
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || AddressError(text.to_owned());
        if let Some(name) = text.strip_prefix("mem:") {
            return if name.is_empty() { Err(wrong()) } else { Ok(Self::mem(name)) };
        }
        let authority = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let host = match host.strip_prefix('[') {
            Some(v6) => v6.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains([':', '/', '@']) => return Err(wrong()),
            None => host,
        };
        if host.is_empty() { Err(wrong()) } else { Ok(Self::tcp(host, port)) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mem(name) => write!(f, "mem:{name}"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl From<std::net::SocketAddr> for Address {
    fn from(socket: std::net::SocketAddr) -> Self {
        Self::tcp(socket.ip().to_string(), socket.port())
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        assert_eq!("mem:router".parse(), Ok(Address::mem("router")));
        assert_eq!("localhost:7100".parse(), Ok(Address::tcp("localhost", 7100)));
        assert_eq!("http://10.0.0.1:7100/".parse(), Ok(Address::tcp("10.0.0.1", 7100)));
        assert_eq!("[::1]:80".parse(), Ok(Address::tcp("::1", 80)));
        for wrong in ["", "mem:", "localhost", ":80", "a:b", "::1:80", "host:99999", "https://host:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(name in "[a-z][a-z0-9./-]{0,20}", host in "[a-z][a-z0-9.-]{0,20}", port: u16) {
            for address in [Address::mem(name.clone()), Address::tcp(host.clone(), port), Address::tcp("::1", port)] {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
