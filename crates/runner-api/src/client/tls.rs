//! Certificates of a runner (docs/spec/runner-config.md, section 2.9).

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use muster_files::Limit;
use muster_job::error_chain;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::ClientError;
use super::pinned_certificate::Verifier;

/// Maximum size of a file: four times that of a bundle of all public authorities.
const LIMIT: Limit = Limit { bytes: 1024 * 1024, remedy: "remove everything except the certificates from it" };

/// `tls-ca-file`, `tls-cert-file` and `tls-key-file` of a runner, in PEM format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates to trust in addition to the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate.
    pub certificate: Option<PathBuf>,
    /// Key of the client certificate.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Sets each path that is `None` to the path of its default file in `directory`, if that file exists: `<host>.crt`,
    /// `<host>.auth.crt` or `<host>.auth.key`.
    #[must_use]
    pub fn or_from(self, directory: &Path, host: &str) -> Self {
        let found = |suffix: &str| Some(directory.join(format!("{host}{suffix}"))).filter(|path| path.is_file());
        Self {
            ca: self.ca.or_else(|| found(".crt")),
            certificate: self.certificate.or_else(|| found(".auth.crt")),
            key: self.key.or_else(|| found(".auth.key")),
        }
    }

    /// Returns true if no file is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the TLS configuration. `None` means that the system's certificates are enough.
    ///
    /// # Errors
    /// [`ClientError::Setup`] with the name of an invalid file.
    pub(super) fn config(&self) -> Result<Option<ClientConfig>, ClientError> {
        if self.is_empty() && has_system_roots() {
            return Ok(None);
        }
        let trusted = self.ca.as_deref().map(authorities).transpose()?.unwrap_or_default();
        self.config_with_trusted(trusted).map(Some)
    }

    fn config_with_trusted(&self, trusted: Vec<CertificateDer<'static>>) -> Result<ClientConfig, ClientError> {
        let mut roots = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::debug!(%error, "failed to read a system certificate");
        }
        if system.certs.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        roots.add_parsable_certificates(system.certs);
        if let Some(path) = &self.ca {
            for certificate in &trusted {
                roots.add(certificate.clone()).map_err(|error| unusable(path, &error.to_string()))?;
            }
        }
        let failed = |error: &dyn std::error::Error| ClientError::Setup(error_chain(error));
        let provider = Arc::new(default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let default_verifier = verifier.build().map_err(|error| failed(&error))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { default_verifier, trusted }));
        match self.client_certificate()? {
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let parsed =
                    PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unusable(key, &error.to_string()))?;
                config.with_client_auth_cert(chain, parsed).map_err(|error| unusable(certificate, &error.to_string()))
            }
            None => Ok(config.with_no_client_auth()),
        }
    }

    /// Returns the files of the client certificate and its key. `None` means that there is no client certificate.
    fn client_certificate(&self) -> Result<Option<(&Path, &Path)>, ClientError> {
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(path), None) => Err(unusable(path, "missing key for this certificate: set tls-key-file")),
            (None, Some(path)) => Err(unusable(path, "missing certificate for this key: set tls-cert-file")),
        }
    }
}

/// Returns a builder for a client that trusts the certificates of the system and of `tls`.
///
/// Without system certificates, as in many images, the client trusts Mozilla's certificates.
///
/// # Errors
/// [`ClientError::Setup`] with the name of an invalid file.
pub fn http_client(tls: &TlsFiles) -> Result<reqwest::ClientBuilder, ClientError> {
    // With HTTP/2, the ranges of a large download would share a connection.
    let builder = reqwest::Client::builder().http1_only();
    Ok(match tls.config()? {
        Some(config) => builder.use_preconfigured_tls(config),
        None => builder,
    })
}

/// Returns a builder for a client that accepts any certificate of a server, and has the client certificate of `tls`.
///
/// # Errors
/// [`ClientError::Setup`] with the name of an invalid file.
pub fn http_client_without_verification(tls: &TlsFiles) -> Result<reqwest::ClientBuilder, ClientError> {
    let builder = reqwest::Client::builder().http1_only().danger_accept_invalid_certs(true);
    let Some((certificate, key)) = tls.client_certificate()? else { return Ok(builder) };
    let pem = [read(key)?, b"\n".to_vec(), read(certificate)?].concat();
    let identity = reqwest::Identity::from_pem(&pem).map_err(|error| unusable(certificate, &error_chain(&error)))?;
    Ok(builder.identity(identity))
}

/// Returns whether the system has certificates. Cached, because reading them is slow.
fn has_system_roots() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| !rustls_native_certs::load_native_certs().certs.is_empty())
}

fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let certificates = certificates(path)?;
    if certificates.is_empty() {
        return Err(unusable(path, "it contains no certificate in PEM format"));
    }
    Ok(certificates)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let pem = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates.map_err(|error| unusable(path, &error.to_string()))
}

/// Reads a certificate file, which may be in a directory that a job can write.
fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    let read = muster_files::open_following_links(path).and_then(|file| muster_files::read_open(file, path, LIMIT));
    read.map_err(|error| unusable(path, &error.problem.to_string()))
}

fn unusable(path: &Path, reason: &str) -> ClientError {
    ClientError::Setup(format!("{}: {reason}", path.display()))
}
