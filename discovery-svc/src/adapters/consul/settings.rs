//! Where Consul is and how it is talked to, as it is used.

use std::path::PathBuf;
use std::time::Duration;

use armature_svc_kit::config::ConfigError;
use armature_svc_kit::secret::Secret;
use http::Uri;

use crate::config::ConsulConfig;

/// Longest prefix: leaves room in a DNS label for the names of components.
const MAX_PREFIX_BYTES: usize = 32;

/// Checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsulSettings {
    /// `http://host:port` or `https://host:port`, without a path.
    pub url: String,
    /// Sent with every call.
    pub token: Option<Secret>,
    /// PEM certificates that Consul's must go back to; those of the system without.
    pub ca_file: Option<PathBuf>,
    /// PEM certificate and key that are shown to Consul.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Another one than the agent's own.
    pub datacenter: Option<String>,
    /// Begins the name of every service and key.
    pub prefix: String,
    /// Of the check of a lease.
    pub ttl: Duration,
}

/// Settings that cannot be used; exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file cannot be read, or is no PEM.
    #[error("{}: {problem}", path.display())]
    File {
        /// Which key names it.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No header can carry the token.
    #[error("consul.token holds characters that a header cannot carry: use visible ASCII")]
    Token,
    /// The system has no certificates.
    #[error("the system has no root certificates: name Consul's with consul.ca_file")]
    NoRoots,
    /// Certificate and key do not belong together.
    #[error("consul.cert_file and consul.key_file cannot be used: {0}")]
    Identity(rustls::Error),
    /// The TLS library has no protocol in common with itself.
    #[error("no TLS protocol can be set up: {0}")]
    Protocol(rustls::Error),
}

impl SettingsError {
    /// The key to look at.
    pub fn key(&self) -> &'static str {
        match self {
            Self::File { key, .. } => key,
            Self::Token => "consul.token",
            Self::NoRoots | Self::Protocol(_) => "consul.ca_file",
            Self::Identity(_) => "consul.cert_file",
        }
    }
}

impl ConsulSettings {
    /// Checks what the types cannot say.
    pub fn new(config: ConsulConfig, ttl: Duration) -> Result<Self, ConfigError> {
        let ConsulConfig { url, token, ca_file, cert_file, key_file, datacenter, prefix } = config;
        let identity = match (cert_file, key_file) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => {
                return Err(ConfigError::invalid("consul.key_file", "must go with consul.cert_file"));
            }
            (None, Some(_)) => {
                return Err(ConfigError::invalid("consul.cert_file", "must go with consul.key_file"));
            }
        };
        let url = url.trim_end_matches('/').to_owned();
        let parsed: Option<Uri> = url.parse().ok();
        let secure = match parsed.as_ref().filter(|it| it.authority().is_some() && it.path() == "/") {
            Some(uri) if uri.scheme_str() == Some("http") => false,
            Some(uri) if uri.scheme_str() == Some("https") => true,
            _ => {
                let problem = format!("`{url}` is not http://host:port or https://host:port");
                return Err(ConfigError::invalid("consul.url", problem));
            }
        };
        if !secure && (ca_file.is_some() || identity.is_some()) {
            let problem = "must begin with https:// when certificates are configured (consul.ca_file, consul.cert_file)";
            return Err(ConfigError::invalid("consul.url", problem));
        }
        let letters =
            |text: &str| text.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-');
        if prefix.is_empty() || prefix.len() > MAX_PREFIX_BYTES || !letters(&prefix) {
            let problem =
                format!("must have 1 to {MAX_PREFIX_BYTES} of a-z, 0-9 and -: it begins names in DNS");
            return Err(ConfigError::invalid("consul.prefix", problem));
        }
        if datacenter.as_ref().is_some_and(|name| name.is_empty() || !letters(&name.replace('_', "-"))) {
            return Err(ConfigError::invalid("consul.datacenter", "must have only a-z, 0-9, - and _"));
        }
        Ok(Self { url, token, ca_file, identity, datacenter, prefix, ttl })
    }
}
