//! Verifies certificates of HTTPS connections in the handshake, before a password is sent.
//!
//! Machines have self-signed certificates, so only a pinned certificate is accepted, or the first one if none is
//! pinned.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::KnownHosts;

#[derive(Debug, Clone)]
pub(super) struct CertificateMismatch {
    pub(super) found: String,
    pub(super) known: String,
}

/// Accepts only known certificates of a machine. If none is known, accepts the first certificate, and stores it when
/// the machine has proved that it has the private key.
#[derive(Debug)]
pub(super) struct CertificateVerifier {
    machine: String,
    hosts: KnownHosts,
    provider: CryptoProvider,
    mismatch: Mutex<Option<CertificateMismatch>>,
}

impl CertificateVerifier {
    pub(super) fn new(machine: &str, hosts: &KnownHosts) -> Self {
        let (machine, hosts) = (machine.to_owned(), hosts.clone());
        Self { machine, hosts, provider: ring::default_provider(), mismatch: Mutex::default() }
    }

    /// Rejects the certificate if `check` returns the fingerprints of other known certificates.
    fn accept(
        &self,
        certificate: &CertificateDer<'_>,
        check: impl Fn(&KnownHosts, &str, &str) -> Option<String>,
    ) -> Result<(), Error> {
        let found = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(certificate)));
        let Some(known) = check(&self.hosts, &self.machine, &found) else { return Ok(()) };
        *self.mismatch.lock().unwrap_or_else(PoisonError::into_inner) = Some(CertificateMismatch { found, known });
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    /// Returns the mismatch, if the machine presented another certificate.
    pub(super) fn mismatch(&self) -> Option<CertificateMismatch> {
        self.mismatch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns a TLS configuration that verifies certificates with `verifier`.
///
/// # Errors
/// If the crypto provider does not support TLS 1.2 and 1.3.
pub(super) fn tls_config(verifier: &Arc<CertificateVerifier>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(verifier.provider.clone());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let verifier = Arc::clone(verifier) as Arc<dyn ServerCertVerifier>;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.accept(end_entity, KnownHosts::check)?;
        Ok(ServerCertVerified::assertion())
    }

    // Certificates are public. Only the signature proves that the machine has the private key.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_tls12_signature(message, certificate, signed, algorithms)?;
        self.accept(certificate, KnownHosts::check_or_learn)?;
        Ok(verified)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_tls13_signature(message, certificate, signed, algorithms)?;
        self.accept(certificate, KnownHosts::check_or_learn)?;
        Ok(verified)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
