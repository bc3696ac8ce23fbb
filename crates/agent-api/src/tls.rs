//! Mutual TLS between an agent on a TCP address and its clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_job::error_chain;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// HTTP/2 in the protocol negotiation, which Go's gRPC clients require.
const HTTP2: &[u8] = b"h2";

/// PEM files of one end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of this end, followed by the certificates of intermediate authorities.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Certificates of the authorities for the other end.
    pub authority: PathBuf,
}

/// File that cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
#[error("failed to use {} for TLS: {message}", path.display())]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// Cause and remedy.
    pub message: String,
}

impl TlsFiles {
    /// Returns the configuration of a server that requires client certificates of the authority.
    ///
    /// # Errors
    /// [`TlsError`] if a file is invalid.
    pub fn server(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.authorities()?, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| invalid(&self.authority, &error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&self.certificate, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&self.certificate)?, self.key()?)
            .map_err(|error| invalid(&self.certificate, &error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    /// Returns the configuration of a client. The server must have a certificate that the authority issued for the
    /// address of the server.
    ///
    /// # Errors
    /// [`TlsError`] if a file is invalid.
    pub fn client(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(self.authorities()?, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| invalid(&self.authority, &error))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&self.certificate, &error))?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(certificates(&self.certificate)?, self.key()?)
            .map_err(|error| invalid(&self.certificate, &error))?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    fn authorities(&self) -> Result<Arc<RootCertStore>, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority)? {
            roots.add(certificate).map_err(|error| invalid(&self.authority, &error))?;
        }
        Ok(Arc::new(roots))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_file(&self.key).map_err(|error| invalid(&self.key, &error))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let parsed = parsed.map_err(|error| invalid(path, &error))?;
    if parsed.is_empty() {
        let message = "it contains no certificate; name a file in PEM format".to_owned();
        return Err(TlsError { path: path.to_owned(), message });
    }
    Ok(parsed)
}

fn invalid(path: &Path, error: &dyn std::error::Error) -> TlsError {
    TlsError { path: path.to_owned(), message: error_chain(error) }
}
