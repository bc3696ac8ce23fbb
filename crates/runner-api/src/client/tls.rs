//! Certificates of the runner's own: authorities beside the system's, and the client's identity (runner-config 2.9).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_files::Limit;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::own_certificate::Verifier;
use super::{ClientError, chain};

/// Maximum size of a file of certificates. A bundle of all public authorities has a quarter of this.
const LIMIT: Limit = Limit { bytes: 1024 * 1024, remedy: "leave only the certificates in it" };

/// `tls-ca-file`, `tls-cert-file`, `tls-key-file` of a runner; PEM all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates that are trusted beside those of the system.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<PathBuf>,
    /// The client's key.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Where a file is not named, `<host>.crt`, `<host>.auth.crt` and `<host>.auth.key` in `folder`, if they exist.
    #[must_use]
    pub fn or_from(self, folder: &Path, host: &str) -> Self {
        let found = |suffix: &str| Some(folder.join(format!("{host}{suffix}"))).filter(|path| path.is_file());
        Self {
            ca: self.ca.or_else(|| found(".crt")),
            certificate: self.certificate.or_else(|| found(".auth.crt")),
            key: self.key.or_else(|| found(".auth.key")),
        }
    }

    /// Whether no file is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What calls over TLS go by; none where no file is named: then the system's certificates alone count.
    ///
    /// # Errors
    /// [`ClientError::Setup`] where one of the files cannot be used; it is named.
    pub(super) fn config(&self) -> Result<Option<ClientConfig>, ClientError> {
        if self.is_empty() {
            return Ok(None);
        }
        let named = self.ca.as_deref().map(authorities).transpose()?.unwrap_or_default();
        self.trusting(named).map(Some)
    }

    fn trusting(&self, named: Vec<CertificateDer<'static>>) -> Result<ClientConfig, ClientError> {
        let mut roots = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::debug!(%error, "a certificate of the system cannot be read");
        }
        roots.add_parsable_certificates(system.certs);
        if let Some(path) = &self.ca {
            for certificate in &named {
                roots.add(certificate.clone()).map_err(|error| unusable(path, &error.to_string()))?;
            }
        }
        let failed = |error: &dyn std::error::Error| ClientError::Setup(chain(error));
        let provider = Arc::new(default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let usual = verifier.build().map_err(|error| failed(&error))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { usual, named }));
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let parsed =
                    PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unusable(key, &error.to_string()))?;
                config.with_client_auth_cert(chain, parsed).map_err(|error| unusable(certificate, &error.to_string()))
            }
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(path), None) => Err(unusable(path, "the key to this certificate is missing: set tls-key-file")),
            (None, Some(path)) => Err(unusable(path, "the certificate to this key is missing: set tls-cert-file")),
        }
    }
}

fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let certificates = certificates(path)?;
    if certificates.is_empty() {
        return Err(unusable(path, "it holds no certificate in PEM form"));
    }
    Ok(certificates)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let pem = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates.map_err(|error| unusable(path, &error.to_string()))
}

/// Reads a file of certificates. One of a job is at a path that the job can write.
fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    let read = muster_files::open_chosen(path).and_then(|file| muster_files::read_open(file, path, LIMIT));
    read.map_err(|error| unusable(path, &error.problem.to_string()))
}

fn unusable(path: &Path, why: &str) -> ClientError {
    ClientError::Setup(format!("{}: {why}", path.display()))
}
