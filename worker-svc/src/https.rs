//! Connections to HTTP servers of others, with TLS where their URL asks for it.

use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// Connects by HTTP/1.1 to `http` and `https` URLs, within `patience`. Authorities are those that the system trusts (`SSL_CERT_FILE` names
/// others).
///
/// # Errors
/// TLS cannot be set up.
pub(crate) fn connector(patience: Duration) -> Result<HttpsConnector<HttpConnector>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    // Some of a system's certificates may be unreadable; the others serve.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(patience));
    Ok(HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(http))
}
