//! gRPC with the runner's certificates, and behind a redirect.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::response::Redirect;
use axum::routing::post;
use axum::serve::Listener;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use url::Url;

use super::{JOB, Setup, TEST_TIMEOUT, payload, request};
use crate::client::{Client, Progress, TlsFiles};
use crate::routes;
use crate::test_support::{MemoryCoordinator, Relay};

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Returns a server that requires client certificates of a new authority, and the files of an accepted client.
fn mutual_tls(directory: &Path) -> (ServerConfig, TlsFiles) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let signed = |name: &str| {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap(), key)
    };
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let (certificate, key) = signed("127.0.0.1");
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let (certificate, key) = signed("runner");
    let file = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let files = TlsFiles {
        ca: file("ca.pem", authority.pem()),
        certificate: file("runner.pem", certificate.pem()),
        key: file("runner.key", key.serialize_pem()),
    };
    (server, files)
}

#[tokio::test]
async fn grpc_uses_the_certificates_of_the_runner() {
    let directory = tempfile::tempdir().unwrap();
    let (config, files) = mutual_tls(directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
    let listener = TlsListener { listener, acceptor: TlsAcceptor::from(Arc::new(config)) };
    let coordinator = Arc::new(MemoryCoordinator::new(TEST_TIMEOUT));
    // Only gRPC uses HTTP/2.
    let over_grpc = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&over_grpc);
    let count = move |call: axum::extract::Request, next: axum::middleware::Next| {
        counter.fetch_add(usize::from(call.version() == http::Version::HTTP_2), Ordering::SeqCst);
        next.run(call)
    };
    let app = routes::router(coordinator.clone()).layer(axum::middleware::from_fn(count));
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let client = Client::with_tls(&url, &files).unwrap();
    for (id, grpc_requests) in [(1, 0), (2, 1), (3, 2)] {
        coordinator.enqueue(payload(id));
        let offer = request(&client, &id.to_string(), &Progress::default()).await.unwrap();
        assert_eq!(offer.job.unwrap().id.0, id);
        assert_eq!(over_grpc.load(Ordering::SeqCst), grpc_requests);
    }
    server.abort();
}

#[tokio::test]
async fn announcement_of_grpc_after_a_redirect_is_ignored() {
    let setup = Setup::over_http(TEST_TIMEOUT).await;
    let target = setup.relay.url.join("api/v4/jobs/request").unwrap().to_string();
    let redirect = move || std::future::ready(Redirect::temporary(&target));
    let app = Router::new().route("/api/v4/jobs/request", post(redirect));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let front = Relay::start(&url).await.unwrap();
    let client = Client::new(&front.url).unwrap();
    for id in [JOB.0, 8] {
        setup.coordinator.enqueue(payload(id));
        let offer = request(&client, &id.to_string(), &Progress::default()).await.unwrap();
        assert_eq!(offer.job.unwrap().id.0, id);
    }
    assert_eq!((front.http2_connections(), setup.relay.http2_connections()), (0, 0));
    server.abort();
}
