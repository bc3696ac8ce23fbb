//! WinRM over HTTPS: the certificate is verified before a password is sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::serve::Listener;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use muster_remote::{DialError, Exit, KnownHosts, RemoteCommand, Target, dial};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::server::TlsStream;

use crate::winrm::{SharedMachine, routes, winrm_target};

struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn new() -> Self {
        let generated = rcgen::generate_simple_self_signed(vec!["windows-1".to_owned()]).unwrap();
        Self {
            certificate: generated.cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(generated.signing_key.serialize_der().into()),
        }
    }

    fn fingerprint(&self) -> String {
        format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&self.certificate)))
    }
}

struct TlsListener(TcpListener, TlsAcceptor);

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Starts a machine that presents `certificate` and signs with the private key of `key`. Also returns a counter of
/// requests.
async fn machine(certificate: &Identity, key: &Identity) -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let key = ring::sign::any_supported_type(&key.key).unwrap();
    let resolver = SingleCertAndKey::from(CertifiedKey::new(vec![certificate.certificate.clone()], key));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let tls_listener =
        TlsListener(listener, TlsAcceptor::from(Arc::new(config.with_cert_resolver(Arc::new(resolver)))));
    let requests = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&requests);
    let count_requests = from_fn(move |request: Request, next: Next| {
        counter.fetch_add(1, Ordering::Relaxed);
        next.run(request)
    });
    tokio::spawn(
        async move { axum::serve(tls_listener, routes(&SharedMachine::default()).layer(count_requests)).await },
    );
    (address, requests)
}

pub(crate) async fn target() -> Target {
    let identity = Identity::new();
    winrm_target(machine(&identity, &identity).await.0, "winrm+https")
}

#[tokio::test]
async fn only_the_first_certificate_is_trusted() {
    let (first, second) = (Identity::new(), Identity::new());
    let (address, _) = machine(&first, &first).await;
    let hosts = KnownHosts::default();
    let session = dial(&winrm_target(address, "winrm+https"), &hosts).await.unwrap();
    assert_eq!(session.run(RemoteCommand::new("both & <more>")).await.unwrap().exit, Exit::Code(3));

    let (address, requests) = machine(&second, &second).await;
    let error = dial(&winrm_target(address, "winrm+https"), &hosts).await.err().unwrap();
    let DialError::HostKey { found, known, .. } = &error else { panic!("{error}") };
    assert_eq!((found, known), (&second.fingerprint(), &first.fingerprint()));
    assert_eq!(
        requests.load(Ordering::Relaxed),
        0,
        "no request with the password may be sent to a machine with another certificate"
    );
}

#[tokio::test]
async fn only_pinned_certificate_is_accepted() {
    let (own, other) = (Identity::new(), Identity::new());
    let hosts = KnownHosts::default();
    hosts.pin("vm-1", &[own.fingerprint()]);
    let (address, requests) = machine(&other, &other).await;
    let error = dial(&winrm_target(address, "winrm+https"), &hosts).await.err().unwrap();
    assert!(matches!(error, DialError::HostKey { .. }), "{error}");
    assert_eq!(requests.load(Ordering::Relaxed), 0);
    let (address, _) = machine(&own, &own).await;
    dial(&winrm_target(address, "winrm+https"), &hosts).await.unwrap();
}

/// A certificate is public, so the machine must prove that it has the private key.
#[tokio::test]
async fn certificate_without_its_key_is_rejected() {
    let (own, impostor) = (Identity::new(), Identity::new());
    let hosts = KnownHosts::default();
    hosts.pin("vm-1", &[own.fingerprint()]);
    let (address, requests) = machine(&own, &impostor).await;
    let mut target = winrm_target(address, "winrm+https");
    target.timeout = Duration::from_secs(1);
    let error = dial(&target, &hosts).await.err().unwrap();
    assert!(matches!(error, DialError::Unreachable { .. }), "{error}");
    assert_eq!(requests.load(Ordering::Relaxed), 0);

    // Without a pinned certificate, none may be stored.
    let hosts = KnownHosts::default();
    dial(&target, &hosts).await.err().unwrap();
    assert!(hosts.names().is_empty(), "the machine has not proved that it has the key");
    dial(&winrm_target(machine(&own, &own).await.0, "winrm+https"), &hosts).await.unwrap();
    assert_eq!(hosts.names(), ["vm-1"]);
}
