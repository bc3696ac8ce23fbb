//! TLS to an engine, with Docker's files `ca.pem`, `cert.pem` and `key.pem`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::EngineError;

#[derive(Clone)]
pub(in crate::docker::engine) struct TlsEndpoint {
    pub(in crate::docker::engine) host: String,
    pub(in crate::docker::engine) port: u16,
    pub(in crate::docker::engine) server_name: ServerName<'static>,
    pub(in crate::docker::engine) connector: TlsConnector,
}

impl std::fmt::Debug for TlsEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsEndpoint").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Returns an endpoint with TLS.
///
/// `cert_path` is the directory with the files; empty means no files. Without `verify`, any certificate is accepted.
///
/// # Errors
/// [`EngineError::Certificate`] if a file is invalid, or [`EngineError::Address`] if the host name is.
pub(super) fn endpoint(host: String, port: u16, cert_path: &str, verify: bool) -> Result<TlsEndpoint, EngineError> {
    let server_name = ServerName::try_from(host.clone()).map_err(|_| EngineError::Address(host.clone()))?;
    let config = config(cert_path, verify)?;
    Ok(TlsEndpoint { host, port, server_name, connector: TlsConnector::from(Arc::new(config)) })
}

fn config(cert_path: &str, verify: bool) -> Result<ClientConfig, EngineError> {
    let file = |name: &str| Some(Path::new(cert_path).join(name)).filter(|path| !cert_path.is_empty() && path.exists());
    let (authority, certificate, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    if !cert_path.is_empty() && authority.is_none() && certificate.is_none() && key.is_none() {
        let message = "it has none of the files ca.pem, cert.pem and key.pem".to_owned();
        return Err(EngineError::Certificate { path: cert_path.into(), message });
    }
    let provider = Arc::new(default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if verify {
        let roots = Arc::new(roots(authority.as_deref())?);
        let built = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        built.map_err(|error| invalid(authority.as_deref().unwrap_or(Path::new(cert_path)), &error))?
    } else {
        Arc::new(AnyCertificate(Arc::clone(&provider)))
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(Path::new(cert_path), &error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(&certificate)?;
            let parsed = PrivateKeyDer::from_pem_file(&key).map_err(|error| invalid(&key, &error))?;
            config.with_client_auth_cert(chain, parsed).map_err(|error| invalid(&certificate, &error))
        }
        (None, None) => Ok(config.with_no_client_auth()),
        (Some(path), None) => Err(incomplete(path, "key.pem")),
        (None, Some(path)) => Err(incomplete(path, "cert.pem")),
    }
}

/// Returns the certificates of the authority. Without a file, returns those that the system trusts.
fn roots(authority: Option<&Path>) -> Result<RootCertStore, EngineError> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| invalid(path, &error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EngineError> {
    let parsed = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let parsed = parsed.map_err(|error| invalid(path, &error))?;
    if parsed.is_empty() {
        let message = "it contains no certificate in PEM format".to_owned();
        return Err(EngineError::Certificate { path: path.to_owned(), message });
    }
    Ok(parsed)
}

fn invalid(path: &Path, error: &dyn std::error::Error) -> EngineError {
    EngineError::Certificate { path: path.to_owned(), message: muster_job::error_chain(error) }
}

fn incomplete(path: PathBuf, missing: &str) -> EngineError {
    EngineError::Certificate { path, message: format!("{missing} is missing beside it") }
}

/// Accepts every certificate, for `tls_verify = false`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
