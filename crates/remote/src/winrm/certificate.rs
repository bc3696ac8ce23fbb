//! Who answers by HTTPS. Machines have certificates that they signed themselves: the pinned one is believed, or the first
//! one, and from then on only that one. Another machine is refused while the connection is made: it never sees a password.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::KnownHosts;

/// Another machine's certificate, and the known one: fingerprints, `SHA256:...`.
#[derive(Debug, Clone)]
pub(super) struct Other {
    pub(super) found: String,
    pub(super) known: String,
}

/// The certificate that a machine may have.
#[derive(Debug)]
pub(super) struct Pinned {
    machine: String,
    hosts: KnownHosts,
    provider: CryptoProvider,
    other: Mutex<Option<Other>>,
}

impl Pinned {
    pub(super) fn new(machine: &str, hosts: &KnownHosts) -> Self {
        let (machine, hosts) = (machine.to_owned(), hosts.clone());
        Self { machine, hosts, provider: ring::default_provider(), other: Mutex::default() }
    }

    /// Who answered instead of the machine, where that was seen.
    pub(super) fn other(&self) -> Option<Other> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What connects to machines with such a certificate only.
///
/// # Errors
/// The crypto provider cannot do TLS 1.2 and 1.3.
pub(super) fn client(pinned: &Arc<Pinned>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(pinned.provider.clone());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let verifier = Arc::clone(pinned) as Arc<dyn ServerCertVerifier>;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(end_entity)));
        let Some(known) = self.hosts.differs(&self.machine, &found) else {
            return Ok(ServerCertVerified::assertion());
        };
        *self.other.lock().unwrap_or_else(PoisonError::into_inner) = Some(Other { found, known });
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    // A certificate is public: that the machine has its key is what counts.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
