//! Whom to trust and what to show when Consul speaks TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::settings::{ConsulSettings, SettingsError};

/// Reads the files that the settings name.
pub(super) fn client(settings: &ConsulSettings) -> Result<ClientConfig, SettingsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(SettingsError::Protocol)?
        .with_root_certificates(roots(settings)?);
    let Some((certificate, key)) = &settings.identity else { return Ok(builder.with_no_client_auth()) };
    let wrong = |problem: rustls::pki_types::pem::Error| SettingsError::File {
        key: "consul.key_file",
        path: key.clone(),
        problem: problem.to_string(),
    };
    let chain = certificates("consul.cert_file", certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong)?;
    builder.with_client_auth_cert(chain, key).map_err(SettingsError::Identity)
}

fn roots(settings: &ConsulSettings) -> Result<RootCertStore, SettingsError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = &settings.ca_file else {
        // Without TLS nobody is asked for them, so that a system may have none.
        if settings.url.starts_with("https:") {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(SettingsError::NoRoots);
            }
        }
        return Ok(roots);
    };
    for certificate in certificates("consul.ca_file", path)? {
        let wrong = |error: rustls::Error| SettingsError::File {
            key: "consul.ca_file",
            path: path.clone(),
            problem: error.to_string(),
        };
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let wrong = |problem: String| SettingsError::File { key, path: path.to_owned(), problem };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let read: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if read.is_empty() { Err(wrong("there is no certificate in it".to_owned())) } else { Ok(read) }
}
