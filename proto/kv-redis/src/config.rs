//! Configuration, the same in every service that uses it: the table `[kv_events.redis]`.

use std::path::PathBuf;

use armature_svc_kit::config::ConfigError;
use armature_svc_kit::secret::Secret;
use redis::{ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};

/// How KV events travel from workers to routers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvEventsConfig {
    /// Through Redis.
    pub redis: RedisConfig,
}

/// Where Redis is, and how to be let in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://host:port/db`, or `rediss://` for TLS; of a cluster several, with commas. Empty: no Redis.
    pub url: String,
    /// User; empty: the default one.
    pub username: String,
    /// Its password.
    pub password: Option<Secret>,
    /// Certificates (PEM) that the server's must come from; none: the system's.
    pub ca_file: Option<PathBuf>,
    /// Certificate (PEM) of this client.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Whether it is a cluster.
    pub cluster: bool,
}

/// The configuration, checked and with its files read.
#[derive(Clone)]
pub struct Options {
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) tls: Option<TlsCertificates>,
    pub(crate) cluster: bool,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        f.debug_struct("Options").field("nodes", &nodes).field("cluster", &self.cluster).finish()
    }
}

impl RedisConfig {
    /// Checks what can be checked without a connection, and reads the files; none: no Redis is wanted.
    ///
    /// # Errors
    /// The first key that is wrong, and what it must be.
    pub fn validate(&self) -> Result<Option<Options>, ConfigError> {
        let invalid =
            |key: &str, problem: String| Err(ConfigError::invalid(format!("kv_events.redis.{key}"), problem));
        if self.url.is_empty() {
            return Ok(None);
        }
        let mut nodes = Vec::new();
        for url in self.url.split(',').map(str::trim) {
            match self.node(url) {
                Ok(node) => nodes.push(node),
                Err(problem) => return invalid("url", problem),
            }
        }
        if nodes.len() > 1 && !self.cluster {
            return invalid(
                "url",
                "names several servers: set kv_events.redis.cluster = true, or name one".into(),
            );
        }
        if self.cluster && nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return invalid("url", "names a database: a cluster has only database 0".into());
        }
        let secure = self.url.split(',').all(|url| url.trim().starts_with("rediss://"));
        let files =
            [("ca_file", &self.ca_file), ("cert_file", &self.cert_file), ("key_file", &self.key_file)];
        if let Some((key, _)) = files.iter().find(|(_, file)| file.is_some())
            && !secure
        {
            return invalid(key, "needs TLS: let kv_events.redis.url begin with rediss://".into());
        }
        let read = |key: &str, file: &Option<PathBuf>| {
            let Some(path) = file else { return Ok(None) };
            std::fs::read(path).map(Some).map_err(|error| {
                let problem = format!("cannot be read: {}: {error}", path.display());
                ConfigError::invalid(format!("kv_events.redis.{key}"), problem)
            })
        };
        let (root_cert, cert) = (read("ca_file", &self.ca_file)?, read("cert_file", &self.cert_file)?);
        for (key, file) in [("ca_file", &root_cert), ("cert_file", &cert)] {
            let certificates =
                file.as_ref().map(|text| CertificateDer::pem_slice_iter(text).filter(Result::is_ok).count());
            if certificates == Some(0) {
                return invalid(key, "holds no certificate in PEM".into());
            }
        }
        let client_tls = match (cert, read("key_file", &self.key_file)?) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            (Some(_), None) => return invalid("key_file", "is missing: cert_file needs it".into()),
            (None, Some(_)) => return invalid("cert_file", "is missing: key_file needs it".into()),
        };
        let options = Options {
            nodes,
            tls: secure.then_some(TlsCertificates { client_tls, root_cert }),
            cluster: self.cluster,
        };
        match crate::client::Redis::new(options.clone()) {
            Ok(_) => Ok(Some(options)),
            Err(problem) => invalid("url", format!("or its TLS files cannot be used: {problem}")),
        }
    }

    fn node(&self, url: &str) -> Result<ConnectionInfo, String> {
        if !url.starts_with("redis://") && !url.starts_with("rediss://") {
            return Err("must begin with redis:// or rediss://".into());
        }
        // The text may hold a password: it is not repeated.
        let node = url.into_connection_info().map_err(|error| format!("is no URL of a Redis: {error}"))?;
        let mut settings = node.redis_settings().clone();
        if settings.password().is_some() {
            return Err("holds a password, which would be shown: put it into kv_events.redis.password".into());
        }
        if !self.username.is_empty() {
            settings = settings.set_username(&self.username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password.expose());
        }
        Ok(node.set_redis_settings(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(config: &RedisConfig) -> String {
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_work_is_named_by_its_key() {
        let base = RedisConfig { url: "redis://127.0.0.1:6379".into(), ..RedisConfig::default() };
        assert!(base.validate().unwrap().is_some());
        assert!(RedisConfig::default().validate().unwrap().is_none());
        for url in ["127.0.0.1:6379", "http://a", "redis://", "unix:///tmp/a"] {
            let text = problem(&RedisConfig { url: url.into(), ..base.clone() });
            assert!(text.contains("kv_events.redis.url"), "{text}");
        }
        let two = RedisConfig { url: "redis://a:1,redis://b:2".into(), ..base.clone() };
        assert!(problem(&two).contains("kv_events.redis.cluster"));
        assert!(RedisConfig { cluster: true, ..two }.validate().unwrap().is_some());
        let plain = RedisConfig { ca_file: Some("/ca.pem".into()), ..base.clone() };
        assert!(problem(&plain).contains("rediss://"), "{}", problem(&plain));
        let missing =
            RedisConfig { url: "rediss://a:1".into(), ca_file: Some("/nowhere/ca.pem".into()), ..base };
        assert!(problem(&missing).contains("kv_events.redis.ca_file"), "{}", problem(&missing));
    }

    #[test]
    fn a_password_is_not_shown() {
        let config = RedisConfig {
            url: "redis://127.0.0.1:6379".into(),
            password: Some(Secret::from_value("hidden").unwrap()),
            ..RedisConfig::default()
        };
        let options = config.validate().unwrap().unwrap();
        let shown = format!("{options:?} {config:?}");
        assert!(!shown.contains("hidden"), "{shown}");
        let text = problem(&RedisConfig { url: "redis://user:hidden@127.0.0.1".into(), ..config });
        assert!(text.contains("kv_events.redis.password") && !text.contains("hidden"), "{text}");
    }
}
